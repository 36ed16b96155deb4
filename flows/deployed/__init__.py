"""What Prefect's page and schedules may start: recorded orders, each flow run in a process of its own."""
