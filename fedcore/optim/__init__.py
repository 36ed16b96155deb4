"""Optimisation: projections, accelerated steps, averages, local steps, masks. No records, no noise."""
