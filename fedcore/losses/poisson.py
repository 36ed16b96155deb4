"""Poisson loss of counts: Poisson regression with a log link."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import numpy as np
from pydantic.dataclasses import dataclass
from scipy.special import xlogy

from fedcore.arrays import Vector
from fedcore.hyperparameters import DECLARED
from fedcore.losses.traits import COUNTS, HELD, LOG, RESIDUAL_ERROR, LabelSet, Link, PredictorLoss, held_exponential


@dataclass(frozen=True, config=DECLARED)
class Poisson(PredictorLoss):
    """exp(z) - y z + y log y - y for counts y; the model predicts the mean exp(z).

    It is the negative log likelihood up to a constant of y, which makes the least value 0. That is half of a record's
    unit deviance (McCullagh and Nelder 1989, section 2.3). It is convex and neither Lipschitz nor smooth on the line,
    so `model.clip` has to be given. Records of norm at most B and models in the ball of diameter D have |z| <= D B / 2.
    The loss is exp(D B / 2)-smooth there: 22,026 at D = 20 and B = 1, and e at D = 2. Above z = HELD the exponential
    continues as its tangent, so that no finite record overflows.
    """

    name: Literal["poisson"] = "poisson"

    labels: ClassVar[LabelSet] = COUNTS
    link: ClassVar[Link] = LOG
    lipschitz: ClassVar[float] = float("inf")
    smoothness: ClassVar[float] = math.exp(HELD)

    def value(self, z: Vector, y: Vector) -> Vector:
        """Loss of each record, in nats; NaN for a label below 0."""
        beyond = np.maximum(z, HELD) - HELD
        with np.errstate(invalid="ignore"):
            least = y - xlogy(y, y)
        return np.maximum(held_exponential(z) * (1.0 + beyond) - y * z - least, 0.0)

    def residual(self, z: Vector, y: Vector) -> Vector:
        """Derivative in z: exp(z) - y."""
        r = held_exponential(z)
        r -= y
        return r

    def residual_change(self, z: Vector, dz: Vector, y: Vector) -> Vector:
        """residual(z, y) - residual(z - dz, y): the larger exponential times 1 - exp(-|dz|), to all digits."""
        at, before = np.minimum(z, HELD), np.minimum(z - dz, HELD)
        step = np.where((z <= HELD) & (z - dz <= HELD), dz, at - before)
        change = -np.expm1(-np.abs(step)) * np.exp(np.maximum(at, before))
        return np.asarray(np.copysign(change, step))

    def curvature(self, z: Vector, y: Vector) -> Vector:
        """Second derivative in z: exp(z), and 0 on the tangent."""
        return np.where(z <= HELD, held_exponential(z), 0.0)

    def smoothness_within(self, reach: float) -> float:
        """exp(reach)."""
        return math.exp(min(reach, HELD))

    def curvature_lipschitz_within(self, reach: float) -> float:
        """exp(reach); infinite beyond HELD, where the second derivative jumps to 0."""
        return math.exp(reach) if reach < HELD else math.inf

    def residual_error(self, reach: float) -> float:
        """Rounding bound relative to the exponential, where that is above 1."""
        return RESIDUAL_ERROR * self.smoothness_within(reach)
