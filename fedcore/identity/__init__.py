"""Identities without an authority: keys that parties make and pin, and envelopes that are signed and sealed."""
