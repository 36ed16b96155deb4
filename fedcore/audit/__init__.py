"""Audits of a silo's code against its plan: tests on synthetic records that fail where the two differ."""
