"""Silos that are services elsewhere: their cards, with the facts that planning needs, and the map of their records."""
