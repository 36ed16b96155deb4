"""Data sources: hospitals, public tables, images, and simulated silos."""
