"""Bugs by people who have not read the audit; each module has a tuple `BUGS`. The form: tests/audit/foreign_bugs.py."""
