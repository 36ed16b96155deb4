"""Starts flow runs of Prefect's page and schedules: recorded orders only, one process each."""
