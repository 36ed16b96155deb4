"""Labels drawn from a label set, or nearest to a number, so that a test takes every registered loss."""

import numpy as np


def drawn(labels, rng, count):
    """Labels (count,) of a loss of one predictor: both classes, counts from 0 to about 8, or normals."""
    if labels.values is not None:
        return np.where(rng.random(count) < 0.5, *labels.values)
    return rng.poisson(2.0, count).astype(float) if labels.whole else 2 * rng.standard_normal(count)


def nearest(labels, number):
    """The label of the set that is nearest to a number."""
    if labels.values is not None:
        return min(labels.values, key=lambda value: abs(value - number))
    return max(labels.least or 0.0, round(number)) if labels.whole else number
