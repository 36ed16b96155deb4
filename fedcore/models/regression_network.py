"""A network of one hidden layer for real labels: features -> hidden units -> one number; not convex."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.arrays import Matrix, Vector
from fedcore.hyperparameters import DECLARED, Count
from fedcore.losses.huber import Huber
from fedcore.losses.squared import Squared
from fedcore.losses.traits import LabelSet, Link
from fedcore.models.activations import Activation
from fedcore.models.hidden_layer import HiddenLayer
from fedcore.models.model import Flags

RegressionLoss = Squared | Huber
"""Losses of a network with one output."""


@dataclass(frozen=True, config=DECLARED)
class RegressionNetwork(HiddenLayer):
    """A network for real labels. `hidden`: units of the hidden layer. `loss`: on the output.

    With 10 softplus units and the squared loss it is the network of DIFF2's experiments (spec diff2 6), whose loss is
    twice this one.
    """

    hidden: Annotated[Count, Field(ge=1)]
    activation: Activation = "relu"
    loss: Annotated[RegressionLoss, Field(discriminator="name")] = Squared()

    @property
    def labels(self) -> LabelSet:
        """The loss's."""
        return self.loss.labels

    @property
    def link(self) -> Link:
        """The loss's."""
        return self.loss.link

    @property
    def outputs(self) -> int:
        """1, one output."""
        return 1

    def known(self, y: Vector) -> Flags:
        """True for finite labels."""
        return np.asarray(np.isfinite(y))

    def residual(self, z: Matrix, y: Vector) -> Matrix:
        """The loss's residual, as a column (n, 1)."""
        return self.loss.residual(z[:, 0], y)[:, None]

    def residual_change(self, z: Matrix, dz: Matrix, y: Vector) -> Matrix:
        """The loss's change of the residual, as a column (n, 1)."""
        return self.loss.residual_change(z[:, 0], dz[:, 0], y)[:, None]

    def predictors(self, w: Vector, X: Matrix) -> Vector:
        """z2 of each record (n,)."""
        return np.asarray(self.products(w, X)[:, 0])

    def evaluate(self, w: Vector, X: Matrix, y: Vector) -> tuple[Vector, Flags | None]:
        """Loss of each record (n,); labels are no classes."""
        return self.loss.value(self.predictors(w, X), y), None

    def evaluate_parts(self, w: Vector, parts: Sequence[tuple[Matrix, Vector]]) -> list[tuple[Vector, Flags | None]]:
        """`evaluate` of each part, one by one."""
        return [self.evaluate(w, X, y) for X, y in parts]
