"""Bugs by authors who have not read the audit, in the form of tests/audit/foreign_bugs.py."""
