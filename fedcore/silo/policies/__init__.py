"""Policies of a silo's operator: read from a file, recorded in the ledger, in force until they expire."""
