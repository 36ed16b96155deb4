"""Commands of a federation: its coordinator's, its relay, and those of its silos."""
