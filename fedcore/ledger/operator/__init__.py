"""The register of an operator: accounts of silos over all their ledgers, and the repair of these ledgers."""
