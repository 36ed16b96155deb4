"""Privacy loss distributions: curves of single answers, losses on a grid, compositions; bounded from above."""
