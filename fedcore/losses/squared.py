"""Squared loss."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic.dataclasses import dataclass

from fedcore.arrays import Vector
from fedcore.hyperparameters import DECLARED
from fedcore.losses.traits import IDENTITY, REALS, LabelSet, Link, PredictorLoss


@dataclass(frozen=True, config=DECLARED)
class Squared(PredictorLoss):
    """(z - y)^2 / 2 for real y; convex, 1-smooth, not Lipschitz: a clipping bound has to be given."""

    name: Literal["squared"] = "squared"

    labels: ClassVar[LabelSet] = REALS
    link: ClassVar[Link] = IDENTITY
    lipschitz: ClassVar[float] = float("inf")
    smoothness: ClassVar[float] = 1.0
    curvature_lipschitz: ClassVar[float] = 0.0

    def value(self, z: Vector, y: Vector) -> Vector:
        """Loss of each record, in squared units of y."""
        return 0.5 * (z - y) ** 2

    def residual(self, z: Vector, y: Vector) -> Vector:
        """Derivative in z: z - y."""
        return z - y

    def residual_change(self, z: Vector, dz: Vector, y: Vector) -> Vector:
        """residual(z, y) - residual(z - dz, y): dz."""
        return dz.copy()

    def curvature(self, z: Vector, y: Vector) -> Vector:
        """Second derivative in z: 1."""
        return np.ones_like(z)
