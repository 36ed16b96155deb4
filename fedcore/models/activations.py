"""What a hidden unit makes of its input: its value, its slope, and how both change over a step, digit by digit."""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
from scipy.special import expit

from fedcore.arrays import Matrix

Activation = Literal["relu", "softplus"]
FARTHEST = 500.0
"""Change of an input, whose exponential is far from overflow."""


class Units(Protocol):
    """Of inputs z (n, hidden), entry by entry."""

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
    """log(1 + exp(z)), whose slope is 1 / (1 + exp(-z)) = 1 - exp(-h): smooth, and near max(z, 0) far from 0."""

    def values(self, z: Matrix) -> Matrix:
        return np.asarray(np.logaddexp(0.0, z))

    def slope(self, z: Matrix) -> Matrix:
        return np.asarray(expit(z))

    def chain(self, delta: Matrix, h: Matrix) -> None:
        delta *= -np.expm1(-h)

    def moved(self, z: Matrix, dz: Matrix) -> tuple[Matrix, Matrix, Matrix, Matrix]:
        """h(z - dz) - h(z) = log(1 + s (e^-dz - 1)), s the slope; for z, dz > 0, where that cancels, the same of -z
        by h(z) = z + h(-z). As e^-h = 1 - s, the slope's change follows. Four transcendental functions, as of h twice.
        """
        small = np.exp(-np.abs(z))
        near = 1.0 / (1.0 + small)
        far = small * near
        up = z > 0.0
        h = np.log1p(small)
        np.add(h, z, out=h, where=up)
        slope, rest = np.where(up, near, far), np.where(up, far, near)
        turned = up & (dz > 0.0)
        power = np.where(turned, dz, -dz)
        grown = np.expm1(np.minimum(power, FARTHEST))
        part = np.where(turned, rest, slope) * grown
        change = -np.log1p(part)
        np.add(change, dz, out=change, where=turned)
        part += 1.0
        bent = slope * rest * grown / part
        np.negative(bent, out=bent, where=~turned)
        beyond = power > FARTHEST
        if beyond.any():  # where nothing cancels, and no training comes
            np.copyto(change, h - self.values(z - dz), where=beyond)
            np.copyto(bent, slope - self.slope(z - dz), where=beyond)
        return h, slope, change, bent


UNITS: dict[Activation, Units] = {"relu": Relu(), "softplus": Softplus()}
