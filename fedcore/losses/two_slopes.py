"""Losses of two straight lines that meet at the label: convex, Lipschitz, not smooth."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedcore.arrays import Vector
from fedcore.losses.traits import PredictorLoss


class TwoSlopes(PredictorLoss):
    """left t for t <= 0 and right t for t >= 0, with t = z - y and left <= 0 <= right.

    Hinge, absolute and quantile losses have this form. A loss gives `slopes(y)`; value, subgradient and both smoothed
    forms follow in closed form. `jump`: of the derivative at the corner, right - left. `smoothness` is infinite, and a
    method that needs a finite one refuses the loss.
    """

    jump: ClassVar[float]
    smoothness: ClassVar[float] = float("inf")
    curvature_lipschitz: ClassVar[float] = float("inf")

    def slopes(self, y: Vector) -> tuple[Vector | float, Vector | float]:
        """(left, right): the derivative in z on either side of the corner, for all records or (n,) each."""
        raise NotImplementedError

    def value(self, z: Vector, y: Vector) -> Vector:
        """Loss of each record."""
        t = z - y
        left, right = self.slopes(y)
        return np.maximum(left * t, right * t)

    def residual(self, z: Vector, y: Vector) -> Vector:
        """A subgradient in z: the derivative off the corner, and at the corner 0, the smallest one."""
        t = z - y
        left, right = self.slopes(y)
        return np.where(t < 0, left, np.where(t > 0, right, 0.0))

    def residual_change(self, z: Vector, dz: Vector, y: Vector) -> Vector:
        """residual(z, y) - residual(z - dz, y): exact, since the derivative is constant on either side."""
        return self.residual(z, y) - self.residual(z - dz, y)

    def curvature(self, z: Vector, y: Vector) -> Vector:
        """Second derivative in z where it exists: 0, and 0 at the corner too."""
        return np.zeros_like(z)
