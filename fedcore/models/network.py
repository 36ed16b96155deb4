"""A network for classes: features -> hidden units -> C classes, softmax cross entropy; not convex.

With 60 features, a bias column, 200 units and 10 classes w has 14,210 entries (spec dp-scaffold 7.4), in the order of
`fedcore.models.hidden_layer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.arrays import Matrix, Vector
from fedcore.hyperparameters import DECLARED, Count
from fedcore.losses.softmax import MOST_CLASSES, Softmax
from fedcore.losses.traits import CLASSES, SOFTMAX, LabelSet, Link
from fedcore.models.activations import Activation
from fedcore.models.hidden_layer import HiddenLayer
from fedcore.models.model import Flags

_LOSS = Softmax()


@dataclass(frozen=True, config=DECLARED)
class OneHiddenLayer(HiddenLayer):
    """A network for classes; delta2 = p - e_y.

    `classes`: C, labels are their numbers 0, ..., C-1. `hidden`: units of the hidden layer.
    """

    classes: Annotated[Count, Field(ge=2, le=MOST_CLASSES)]
    hidden: Annotated[Count, Field(ge=1)]
    activation: Activation = "relu"

    labels: ClassVar[LabelSet] = CLASSES
    link: ClassVar[Link] = SOFTMAX

    @property
    def outputs(self) -> int:
        """C, one output per class."""
        return self.classes

    def known(self, y: Vector) -> Flags:
        """True for labels that are classes."""
        return np.asarray(_LOSS.one_hot(y, self.classes).any(axis=1))

    def residual(self, z: Matrix, y: Vector) -> Matrix:
        """p - e_y (n, C), with entries of p at least 1e-148."""
        return _LOSS.residual(z, y)

    def residual_change(self, z: Matrix, dz: Matrix, y: Vector) -> Matrix:
        """p - p' (n, C)."""
        return _LOSS.residual_change(z, dz, y)

    def predictors(self, w: Vector, X: Matrix) -> Matrix:
        """z2 (n, C)."""
        return self.products(w, X)

    def evaluate(self, w: Vector, X: Matrix, y: Vector) -> tuple[Vector, Flags | None]:
        """Cross entropy in nats (n,), and True where another class has the largest z2, or ties and is first."""
        z = self.predictors(w, X)
        return _LOSS.value(z, y), np.asarray(z.argmax(axis=1) != y)

    def evaluate_parts(self, w: Vector, parts: Sequence[tuple[Matrix, Vector]]) -> list[tuple[Vector, Flags | None]]:
        """`evaluate` of each part, one by one."""
        return [self.evaluate(w, X, y) for X, y in parts]
