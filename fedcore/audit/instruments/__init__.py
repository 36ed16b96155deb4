"""Instruments of the audit: one kind of privacy bug per file."""
