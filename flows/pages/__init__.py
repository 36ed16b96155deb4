"""Contents of Prefect's and MLflow's pages for runs and sweeps: names, links, tags, columns and artifacts."""
