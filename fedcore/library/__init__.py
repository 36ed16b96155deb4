"""Python API for scripts and notebooks: `fedcore.train` and `fedcore.plan`, in this process, without a server."""
