"""Privacy loss distributions: curves of answers, losses on a grid, compositions; upper bounds."""
