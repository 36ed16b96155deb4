"""Calls from a coordinator's driver to silos that it cannot reach: in envelopes, which the silos come and take."""
