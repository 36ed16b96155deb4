"""Python API for scripts and notebooks: `fedcore.train` and `fedcore.plan`, without a server."""
