"""Differences of functions at two nearby points, as accurate as the step between them.

Subtracting two values loses digits: as many as the step is shorter than the values are large. Steps of private methods
fall to 1e-14 of the weights. A difference that is clipped to a multiple of the step must be accurate, not rounding.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from fedcore.arrays import Vector

Values = NDArray[np.float64]


def sigmoid_change(z: Values, dz: Values) -> Values:
    """sigma(z) - sigma(z - dz) for sigma(z) = 1 / (1 + exp(-z)), entry by entry.

    It is a product: sigma at the larger point, 1 - sigma at the smaller point, and 1 - exp(-|dz|), with the sign of dz.
    """
    other = z - dz
    change = -np.expm1(-np.abs(dz)) * expit(np.maximum(z, other)) * expit(-np.minimum(z, other))
    return np.asarray(np.copysign(change, dz))


def held_change(t: Vector, dt: Vector, low: Vector | float, high: Vector | float) -> Vector:
    """h(t) - h(t - dt) for t clipped to [low, high].

    It is exactly dt where both points are inside, and 0 where both are beyond one end.
    """
    other = t - dt
    inside = (low <= t) & (t <= high) & (low <= other) & (other <= high)
    return np.where(inside, dt, np.clip(t, low, high) - np.clip(other, low, high))
