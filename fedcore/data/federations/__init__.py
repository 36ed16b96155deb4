"""Silos that are services elsewhere: their cards, which say what planning needs, and the map of their records."""
