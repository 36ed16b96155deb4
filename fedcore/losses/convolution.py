"""Convolution smoothing of a nonsmooth loss: its mean over a ball around the model, in closed form."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass
from scipy.special import betainc

from fedcore.arrays import Vector
from fedcore.hyperparameters import DECLARED, Count, Real
from fedcore.losses.moreau import Smoothable
from fedcore.losses.traits import LabelSet, Link, PredictorLoss


@dataclass(frozen=True, config=DECLARED)
class Convolution(PredictorLoss):
    """E loss(z + reach T, y), T the first coordinate of a uniform point of the unit ball of R^dim.

    `reach`: in units of the predictor. The mean exceeds the loss by at most `gap`; convex, as Lipschitz as the loss.
    Source: Gao et al. 2024, Algorithms 6 and 7: `f_s(w) = E f(w + v)`, v uniform in the ball of radius s, drawn at the
    silo. For a linear predictor <v, x> is s |x| T, and (T + 1)/2 has the Beta((dim+1)/2, (dim+1)/2) distribution. So
    value and gradient are exact, without randomness (spec localized-isrl-dp 13.5). Deviation: reach = s feature_bound
    for all records, so shorter ones are smoothed more than by the paper, within its bounds.
    """

    loss: Smoothable
    reach: Annotated[Real, Field(gt=0)]
    dim: Annotated[Count, Field(ge=1, le=2**26)]

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
        """Jump of the slope times the largest density of reach T: below the paper's L sqrt(dim) / s."""
        return self.loss.jump * self._density / self.reach

    @property
    def gap(self) -> float:
        """Largest value of convolution - loss, reached at the corner: jump reach E max(T, 0)."""
        return self.loss.jump * self.reach * self._density / (self.dim + 1)

    @property
    def _density(self) -> float:
        """Density of T at 0, its largest: Gamma(dim/2 + 1) / (sqrt(pi) Gamma((dim + 1)/2))."""
        return math.exp(math.lgamma(self.dim / 2 + 1) - math.lgamma((self.dim + 1) / 2)) / math.sqrt(math.pi)

    def value(self, z: Vector, y: Vector) -> Vector:
        """Mean loss of each record: right E max(t + reach T, 0) - left E max(-t - reach T, 0), t = z - y."""
        left, right = self.loss.slopes(y)
        u = (z - y) / self.reach
        return self.reach * (right * self._upper_mean(u) - left * self._upper_mean(-u))

    def residual(self, z: Vector, y: Vector) -> Vector:
        """Derivative in z: the slopes weighted by the probabilities that z + reach T lies below and above y."""
        left, right = self.loss.slopes(y)
        return left + (right - left) * self._probability((z - y) / self.reach)

    def residual_change(self, z: Vector, dz: Vector, y: Vector) -> Vector:
        """residual(z, y) - residual(z - dz, y), by subtraction.

        Its error is about 1e-15 of the loss's jump, so rounding drowns a step far below 1e-10 of `reach`.
        """
        left, right = self.loss.slopes(y)
        u, other = (z - y) / self.reach, (z - dz - y) / self.reach
        return (right - left) * (self._probability(u) - self._probability(other))

    def curvature(self, z: Vector, y: Vector) -> Vector:
        """Second derivative in z: jump times the density of reach T at y - z."""
        u = np.clip((z - y) / self.reach, -1.0, 1.0)
        inside = np.abs(u) < 1.0
        bell = np.where(inside, 1.0 - u * u, 0.0) ** ((self.dim - 1) / 2) * inside
        return self.smoothness * bell

    def _probability(self, u: Vector) -> Vector:
        """P(T < u)."""
        half = (self.dim + 1) / 2
        return np.asarray(betainc(half, half, (1.0 + np.clip(u, -1.0, 1.0)) / 2.0))

    def _upper_mean(self, u: Vector) -> Vector:
        """E max(T + u, 0) = u P(T < u) + E[T; T > -u], whose last term is an integral in closed form."""
        held = np.clip(u, -1.0, 1.0)
        tail = self._density / (self.dim + 1) * (1.0 - held * held) ** ((self.dim + 1) / 2)
        return np.maximum(u * self._probability(u) + tail, 0.0)
