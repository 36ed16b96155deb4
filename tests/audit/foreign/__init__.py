"""Bugs by authors who have not read the audit; each module has a tuple `BUGS` (see tests/audit/foreign_bugs.py)."""
