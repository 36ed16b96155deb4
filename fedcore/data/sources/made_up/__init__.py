"""Simulated silos made up from numbers of records and columns."""
