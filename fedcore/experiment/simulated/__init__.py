"""Simulated silos for trying settings without asking a silo: records are made up, or drawn from a public file."""
