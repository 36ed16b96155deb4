"""Checks of a readable table for its operator: cells, columns, sizes, and the rows of a CSV file."""
