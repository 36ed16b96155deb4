"""Differences of functions at two nearby points, with the relative accuracy of the step that lies between them.

Subtracting two values loses as many digits as the step is shorter than they are large. Steps of private methods fall to
1e-14 of the weights, and what is clipped to a multiple of the step has to be a number, not its rounding.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from fedcore.arrays import Vector

Values = NDArray[np.float64]


def sigmoid_change(z: Values, dz: Values) -> Values:
    """sigma(z) - sigma(z - dz) for 1 / (1 + exp(-z)), entry by entry: the larger one's probability of one side, times
    the smaller one's of the other, times 1 - exp(-|dz|)."""
    other = z - dz
    change = -np.expm1(-np.abs(dz)) * expit(np.maximum(z, other)) * expit(-np.minimum(z, other))
    return np.asarray(np.copysign(change, dz))


def held_change(t: Vector, dt: Vector, low: Vector | float, high: Vector | float) -> Vector:
    """h(t) - h(t - dt) for t held in [low, high]: dt itself where both are inside, 0 where both are beyond one end."""
    other = t - dt
    inside = (low <= t) & (t <= high) & (low <= other) & (other <= high)
    return np.where(inside, dt, np.clip(t, low, high) - np.clip(other, low, high))
