"""Simulated silos made up from numbers of records and a schema of columns."""
