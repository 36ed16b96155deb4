"""Privacy formulas as the papers print them, with their ranges."""
