"""Checks of a readable table for its operator: cells, columns, sizes, rows of CSV files."""
