"""What is said of a table that can be read, to its operator alone: cells, columns, and how its rows lie."""
