"""Audits: tests that can fail when a silo's code does not do what its plan says. On synthetic records only."""
