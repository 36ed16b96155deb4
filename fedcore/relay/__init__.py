"""A relay between the parties of a federation: it stores sealed envelopes until their receivers have taken them."""
