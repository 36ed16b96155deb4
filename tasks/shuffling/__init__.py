"""Clients of a shuffler: HTTP calls of sites and drivers, and a backend whose rounds end with an anonymous batch."""
