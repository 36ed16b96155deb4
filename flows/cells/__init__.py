"""Flow runs of a sweep's cells: the interface, and its writer of rows in Prefect's database."""
