"""Private federated learning without a trusted server: the science, free of any engine."""

__version__ = "0.2.0"
