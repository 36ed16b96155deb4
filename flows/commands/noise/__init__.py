"""`fedcore privacy`: noise for a guarantee, and epsilon of a noise."""
