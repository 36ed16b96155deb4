"""Contents of Prefect's and MLflow's pages: names, links, tags, columns and artifacts."""
