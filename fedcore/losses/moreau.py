"""Moreau envelope of a nonsmooth loss, which the papers call Nesterov smoothing."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.arrays import Vector
from fedcore.hyperparameters import DECLARED, Real
from fedcore.losses.absolute import Absolute
from fedcore.losses.changes import held_change
from fedcore.losses.hinge import Hinge
from fedcore.losses.quantile import Quantile
from fedcore.losses.traits import LabelSet, Link, PredictorLoss

Smoothable = Hinge | Absolute | Quantile
"""Losses with one corner, for which both kinds of smoothing are written."""


@dataclass(frozen=True, config=DECLARED)
class Moreau(PredictorLoss):
    """min over u of loss(u, y) + (weight/2)(z - u)^2: convex and weight-smooth in z.

    It is as Lipschitz as the loss. `weight`: in units of loss per squared predictor. The envelope is below the loss by
    at most `gap`. Source: Gao et al. 2024, Theorem 3.1, with the minimum over R^d (spec localized-isrl-dp 7.4).
    Deviation: the envelope is taken in the predictor z = <w, x>, with one weight for all records. In w this is the
    paper's f_b with b = weight |x|^2. With weight = beta / feature_bound^2 records of the largest norm have the paper's
    envelope, shorter ones a smoother one. The theorem's three facts hold for all records: convex, beta-smooth, gap at
    most L^2 / (2 beta). A record's gradient stays a multiple of x that depends on z and y alone.
    """

    loss: Smoothable
    weight: Annotated[Real, Field(gt=0)]

    @property
    def labels(self) -> LabelSet:
        return self.loss.labels

    @property
    def link(self) -> Link:
        return self.loss.link

    @property
    def lipschitz(self) -> float:
        return self.loss.lipschitz

    @property
    def smoothness(self) -> float:
        return self.weight

    @property
    def gap(self) -> float:
        """Largest value of loss - envelope, reached beyond the steeper side: lipschitz^2 / (2 weight)."""
        return self.loss.lipschitz**2 / (2.0 * self.weight)

    def prox(self, z: Vector, y: Vector) -> Vector:
        """The minimising u of each record: z moved towards the corner by slope / weight, but not past it."""
        return z - self.residual(z, y) / self.weight

    def value(self, z: Vector, y: Vector) -> Vector:
        """Envelope of each record, by the dual form: max of g t - g^2 / (2 weight) over g in [left, right]."""
        g = self.residual(z, y)
        return g * (z - y) - g * g / (2.0 * self.weight)

    def residual(self, z: Vector, y: Vector) -> Vector:
        """Derivative in z: weight (z - prox), which is weight (z - y) held between the slopes."""
        left, right = self.loss.slopes(y)
        return np.clip(self.weight * (z - y), left, right)

    def residual_change(self, z: Vector, dz: Vector, y: Vector) -> Vector:
        """residual(z, y) - residual(z - dz, y): weight dz itself strictly between the slopes."""
        left, right = self.loss.slopes(y)
        return held_change(self.weight * (z - y), self.weight * dz, left, right)

    def curvature(self, z: Vector, y: Vector) -> Vector:
        """Second derivative in z where it exists: weight where the slope is strictly between the two, else 0."""
        left, right = self.loss.slopes(y)
        slope = self.weight * (z - y)
        return self.weight * ((left < slope) & (slope < right)).astype(np.float64)
