"""Policies of a silo's operator: read from a file, recorded, in force until it expires."""
