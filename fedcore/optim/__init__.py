"""Optimisation: projections, accelerated steps, stage plans, localization schedules. No records, no noise."""
