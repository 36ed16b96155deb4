"""Activations of hidden units: value, slope, and how both change over a step, without loss of digits."""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
from scipy.special import expit

from fedcore.arrays import Matrix

Activation = Literal["relu", "softplus"]
FARTHEST = 500.0
"""Largest change of an input whose exponential is taken, far from overflow."""


class Units(Protocol):
    """An activation h of inputs z (n, hidden), entry by entry."""

    def values(self, z: Matrix) -> Matrix:
        """h(z)."""
        ...

    def slope(self, z: Matrix) -> Matrix:
        """h'(z)."""
        ...

    def chain(self, delta: Matrix, h: Matrix) -> None:
        """Multiplies `delta` by h'(z) in place, where h = h(z)."""
        ...

    def moved(self, z: Matrix, dz: Matrix) -> tuple[Matrix, Matrix, Matrix, Matrix]:
        """h(z), h'(z), and h(z) - h(z - dz), h'(z) - h'(z - dz) with the relative accuracy of dz."""
        ...


class Relu:
    """max(z, 0); its slope at the corner is 0."""

    def values(self, z: Matrix) -> Matrix:
        return np.maximum(z, 0.0)

    def slope(self, z: Matrix) -> Matrix:
        return (z > 0.0).astype(np.float64)

    def chain(self, delta: Matrix, h: Matrix) -> None:
        np.copyto(delta, 0.0, where=h <= 0.0)

    def moved(self, z: Matrix, dz: Matrix) -> tuple[Matrix, Matrix, Matrix, Matrix]:
        h, slope = self.values(z), self.slope(z)
        other = z - dz
        change = np.where((z > 0.0) & (other > 0.0), dz, h - np.maximum(other, 0.0))
        return h, slope, change, slope - self.slope(other)


class Softplus:
    """log(1 + exp(z)), with slope 1 / (1 + exp(-z)) = 1 - exp(-h): smooth, and near max(z, 0) far from 0."""

    def values(self, z: Matrix) -> Matrix:
        return _softplus(z)[1]

    def slope(self, z: Matrix) -> Matrix:
        return np.asarray(expit(z))

    def chain(self, delta: Matrix, h: Matrix) -> None:
        delta *= -np.expm1(-h)

    def moved(self, z: Matrix, dz: Matrix) -> tuple[Matrix, Matrix, Matrix, Matrix]:
        """As `Units.moved`, by h(z - dz) - h(z) = log(1 + s (e^-dz - 1)), s the slope.

        For z, dz > 0 that cancels, and the same is taken of -z by h(z) = z + h(-z). As e^-h = 1 - s, the slope's change
        follows. It takes four transcendental functions, as many as h twice.
        """
        # In place where possible: a new page of memory costs as much as the numbers in it. Bits choose in place of
        # branches, which take three times as long where a processor cannot predict them.
        down = z.view(np.int64) >> 63  # -1 for a negative number, else 0
        kept = dz.view(np.int64) >> 63
        kept |= down  # 0 where turned, else -1
        signs = kept << 63
        small, h = _softplus(z)
        near = small + 1.0
        np.divide(1.0, near, out=near)
        small *= near  # now the smaller one of s and 1 - s, and `near` the larger
        apart = near.view(np.int64) ^ small.view(np.int64)
        slope = ((apart & down) ^ near.view(np.int64)).view(np.float64)
        apart &= kept ^ down
        part = (apart ^ small.view(np.int64)).view(np.float64)  # 1 - s where turned, else s
        power = (dz.view(np.int64) ^ signs).view(np.float64)
        beyond = power > FARTHEST
        np.minimum(power, FARTHEST, out=power)
        grown = np.expm1(power, out=power)
        part *= grown
        change = np.log1p(part)
        np.negative(change, out=change)
        np.invert(kept, out=kept)
        kept &= dz.view(np.int64)
        change += kept.view(np.float64)
        part += 1.0
        grown *= near
        grown *= small
        grown /= part
        grown.view(np.int64)[...] ^= signs
        if beyond.any():  # nothing cancels there, and no training reaches it
            np.copyto(change, h - self.values(z - dz), where=beyond)
            np.copyto(grown, slope - self.slope(z - dz), where=beyond)
        return h, slope, change, grown


def _softplus(z: Matrix) -> tuple[Matrix, Matrix]:
    """exp(-|z|) and log(1 + exp(z)), each in a new array, by functions that NumPy computes in vectors.

    `np.logaddexp` is computed number by number, in several times the time.
    """
    small = np.abs(z)
    np.negative(small, out=small)
    np.exp(small, out=small)
    h = np.log1p(small)
    h += np.maximum(z, 0.0)
    return small, h


UNITS: dict[Activation, Units] = {"relu": Relu(), "softplus": Softplus()}
