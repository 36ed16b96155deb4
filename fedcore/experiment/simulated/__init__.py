"""Silos whose records are made up, or drawn from a public file: what settings are tried on, so no silo is asked."""
