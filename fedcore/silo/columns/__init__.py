"""SIMULATION: rounds of a site's simulated silos in columns, with the bits of each silo alone."""
