"""A shuffler as sites and drivers reach it: over HTTP, and as a backend whose rounds end with an anonymous batch."""
