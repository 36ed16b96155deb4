"""Bugs by authors who have not read the audit; each module has a tuple `BUGS` in the form of
tests/audit/foreign_bugs.py.
"""
