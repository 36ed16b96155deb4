"""What Prefect's and MLflow's pages show of runs and sweeps: their names, links to them, and columns."""
