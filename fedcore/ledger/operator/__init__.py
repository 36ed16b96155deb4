"""The register of an operator: accounts of silos over all their ledgers, and what repairs them."""
