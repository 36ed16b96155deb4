"""A silo's account as the auditor computes it: least costs, known charges, and lives of ledgers."""
