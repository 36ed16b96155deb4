"""Starts flow runs of Prefect's page and schedules: recorded orders only, each in a process of its own."""
