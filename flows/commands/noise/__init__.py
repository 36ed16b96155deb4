"""`fedcore privacy`: noise of a guarantee, and epsilon of a noise."""
