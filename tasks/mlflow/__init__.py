"""MLflow's store as the tracker writes it: its database, runs and rows, and models from templates."""
