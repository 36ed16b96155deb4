"""Logistic loss."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import numpy as np
from pydantic.dataclasses import dataclass

from fedcore.arrays import Vector
from fedcore.hyperparameters import DECLARED
from fedcore.losses.changes import sigmoid_change
from fedcore.losses.traits import LOGIT, TWO_CLASSES, LabelSet, Link, PredictorLoss


@dataclass(frozen=True, config=DECLARED)
class Logistic(PredictorLoss):
    """log(1 + exp(-y z)) for labels y in {-1, +1}; convex, 1-Lipschitz and 1/4-smooth in z.

    Its second derivative changes by at most `curvature_lipschitz` per unit of z.
    """

    name: Literal["logistic"] = "logistic"

    labels: ClassVar[LabelSet] = TWO_CLASSES
    link: ClassVar[Link] = LOGIT
    lipschitz: ClassVar[float] = 1.0
    smoothness: ClassVar[float] = 0.25
    curvature_lipschitz: ClassVar[float] = 1.0 / (6.0 * math.sqrt(3.0))

    def value(self, z: Vector, y: Vector) -> Vector:
        """Loss of each record, in nats."""
        return np.logaddexp(0.0, -y * z)

    def residual(self, z: Vector, y: Vector) -> Vector:
        """Derivative in z, -y / (1 + exp(y z)), written as (tanh(z/2) - y)/2: one call and no overflow."""
        r = 0.5 * z
        np.tanh(r, out=r)
        r -= y
        r *= 0.5
        return r

    def residual_change(self, z: Vector, dz: Vector, y: Vector) -> Vector:
        """residual(z, y) - residual(z - dz, y): the sigmoid's change for either label, without loss of digits."""
        return sigmoid_change(z, dz)

    def curvature(self, z: Vector, y: Vector) -> Vector:
        """Second derivative in z, in (0, 1/4]."""
        t = np.tanh(0.5 * z)
        return 0.25 * (1.0 - t) * (1.0 + t)
