"""Huber loss."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.arrays import Vector
from fedcore.hyperparameters import DECLARED, Factor
from fedcore.losses.changes import held_change
from fedcore.losses.traits import IDENTITY, REALS, LabelSet, Link, PredictorLoss


@dataclass(frozen=True, config=DECLARED)
class Huber(PredictorLoss):
    """t^2/2 for |t| <= width, width |t| - width^2/2 beyond, t = z - y.

    Convex, width-Lipschitz and 1-smooth in z. Source: Huber 1964, Robust estimation of a location parameter, equation
    (9).
    """

    name: Literal["huber"] = "huber"
    width: Annotated[Factor, Field(gt=0)] = 1.0

    labels: ClassVar[LabelSet] = REALS
    link: ClassVar[Link] = IDENTITY
    smoothness: ClassVar[float] = 1.0
    curvature_lipschitz: ClassVar[float] = float("inf")

    @property
    def lipschitz(self) -> float:
        return self.width

    def value(self, z: Vector, y: Vector) -> Vector:
        """Loss of each record."""
        t = np.abs(z - y)
        inside = np.minimum(t, self.width)
        return inside * (t - 0.5 * inside)

    def residual(self, z: Vector, y: Vector) -> Vector:
        """Derivative in z: z - y held in [-width, width]."""
        return np.clip(z - y, -self.width, self.width)

    def residual_change(self, z: Vector, dz: Vector, y: Vector) -> Vector:
        """residual(z, y) - residual(z - dz, y): dz itself between the corners."""
        return held_change(z - y, dz, -self.width, self.width)

    def curvature(self, z: Vector, y: Vector) -> Vector:
        """Second derivative in z where it exists, 0 at the two corners."""
        return (np.abs(z - y) < self.width).astype(np.float64)
