"""A silo's account as the auditor computes it: least cost of releases, known charges, and lives of ledgers."""
