"""Convolution smoothing by draws, as in the paper: each record's gradient at a random point of a ball."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.arrays import Vector
from fedcore.draws.stream import Draws
from fedcore.hyperparameters import DECLARED, Count, Real
from fedcore.losses.convolution import Convolution
from fedcore.losses.moreau import Smoothable
from fedcore.losses.traits import LabelSet, Link, PredictorLoss


@dataclass(frozen=True, config=DECLARED)
class DrawnConvolution(PredictorLoss):
    """E f(w + v, x), v uniform in the ball of `radius` in R^dim, estimated by draws of v.

    Source: Gao et al. 2024, Algorithm 7 (spec localized-isrl-dp 6.5). A silo draws `shifts`, one per record and answer,
    adds them to the predictors and takes the derivative of `loss` there. For a linear predictor z = <w, x> only <v, x>
    = radius |x| T matters. T is the first coordinate of a uniform point of the unit ball, so no vector is drawn. The
    estimate is unbiased where clipping changes nothing, which a clip of at least lipschitz |x| ensures. Constants are
    those of the mean for records of norm at most `feature_bound`.
    """

    loss: Smoothable
    radius: Annotated[Real, Field(gt=0)]
    feature_bound: Annotated[Real, Field(gt=0)]
    dim: Annotated[Count, Field(ge=1)]

    @property
    def mean(self) -> Convolution:
        """The mean loss over draws, for records of the largest norm; shorter records are smoothed less."""
        return Convolution(self.loss, self.radius * self.feature_bound, self.dim)

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
        """Smoothness of the mean.

        In w it is jump |x| times the density of T at 0 over radius, largest for the largest norm.
        """
        return self.mean.smoothness

    @property
    def gap(self) -> float:
        """Largest value of mean - loss."""
        return self.mean.gap

    def shifts(self, norms: Vector, draws: np.random.Generator | Draws) -> Vector:
        """<v_j, x_j> for a fresh v_j of each record of norm |x_j| (n,), in units of the predictor.

        (T + 1)/2 has the Beta((dim + 1)/2, (dim + 1)/2) distribution. Every record gets a draw, in a sample or not, so
        its point does not depend on the other records of the sample.
        """
        half = (self.dim + 1) / 2
        return np.asarray(self.radius * norms * (2.0 * draws.beta(half, half, len(norms)) - 1.0))

    def value(self, z: Vector, y: Vector) -> Vector:
        """Loss of each record at predictors already shifted by draws: that of `loss`."""
        return self.loss.value(z, y)

    def residual(self, z: Vector, y: Vector) -> Vector:
        """Derivative in z at predictors already shifted by draws: that of `loss`."""
        return self.loss.residual(z, y)

    def residual_change(self, z: Vector, dz: Vector, y: Vector) -> Vector:
        """residual(z, y) - residual(z - dz, y) at predictors already shifted by one draw: that of `loss`."""
        return self.loss.residual_change(z, dz, y)

    def curvature(self, z: Vector, y: Vector) -> Vector:
        """Second derivative in z at predictors already shifted by draws: that of `loss`, 0."""
        return self.loss.curvature(z, y)
