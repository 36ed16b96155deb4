"""Softmax regression: C linear predictors z = X W', gradients (p - e_y) x' clipped in joint norm.

W (C, features) is one vector w of C features float64, row after row; the bias of a class is the last entry of its row.
The joint norm is W's Frobenius norm. For C = 2 it is logistic regression with the weights W_1 - W_0. The loss of y = 1
is then `log(1 + exp(-(z_1 - z_0)))`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.arrays import Matrix, Vector
from fedcore.draws.stream import Draws
from fedcore.hyperparameters import DECLARED, Count
from fedcore.losses.softmax import MOST_CLASSES, Softmax
from fedcore.losses.traits import CLASSES, RESIDUAL_ERROR, SOFTMAX, LabelSet, Link, LossTraits
from fedcore.models.linear import predictor_error, residual_bounds
from fedcore.models.model import Flags, Sums
from fedcore.models.norms import shortened_products

_LOSS = Softmax()


@dataclass(frozen=True, config=DECLARED)
class SoftmaxRegression(LossTraits):
    """Softmax regression. `classes`: C, labels are their numbers 0, ..., C-1.

    Constants in w are those of the loss times feature bounds. Since |(p - e_y) x'| = |p - e_y| |x|, clipping needs no
    per-record gradient. Row by row p - e_y is shortened to clip / |x| (spec dp-scaffold, section on vectorisation), and
    the sum is one product of matrices.
    """

    classes: Annotated[Count, Field(ge=2, le=MOST_CLASSES)]

    labels: ClassVar[LabelSet] = CLASSES
    link: ClassVar[Link] = SOFTMAX

    @property
    def lipschitz(self) -> float:
        return _LOSS.lipschitz

    @property
    def smoothness(self) -> float:
        return _LOSS.smoothness

    def weights(self, features: int) -> int:
        """Number of weights: C times features."""
        return self.classes * features

    def start(self, features: int, generator: Draws) -> Vector:
        """0, the centre of the domain."""
        return np.zeros(self.weights(features))

    def bounds(self, X: Matrix, y: Vector, clip: float) -> Vector:
        """Largest |p - e_y| of each record (n,), clip / |x| rounded down; 0 where y is no class.

        A record with bound 0 contributes zero. At most 2, which no |p - e_y| reaches: infinity, at x = 0, would make a
        factor NaN.
        """
        # The norm of a residual of C entries is computed up to a relative error below (C + 4) 2^-53.
        exact = 1.0 - (self.classes + 8) * 2.0**-52
        known = _LOSS.one_hot(y, self.classes).any(axis=1)
        return np.asarray(np.minimum(residual_bounds(X, clip) * exact, 2.0) * known)

    def clipped_gradient_sum(
        self, w: Vector, X: Matrix, y: Vector, bounds: Vector, weights: Vector | None = None
    ) -> Vector:
        """Sum over records of clip((p - e_y) x') as a vector (d,); see `Model.clipped_gradient_sum`."""
        r = _LOSS.residual(self.predictors(w, X), y)
        norms = np.sqrt(np.einsum("ij,ij->i", r, r))
        # A norm is 0 or above 1e-148; the floor keeps 0/0 out.
        np.maximum(norms, 1e-300, out=norms)
        factors = np.minimum(bounds / norms, 1.0)
        if weights is not None:
            factors *= weights
        r *= factors[:, None]
        total = r.T @ X
        # A NaN row is NaN throughout, and spoils every coordinate of the sum.
        if not np.isfinite(total[0, 0]):
            r[~np.isfinite(r[:, 0])] = 0.0
            total = r.T @ X
        return total.ravel()

    def clipped_gradient_sums(
        self, parts: Sequence[tuple[Matrix, Vector, Vector]], weights: Sequence[Vector] | None = None
    ) -> Sums | None:
        """None: classes make products large enough by themselves."""
        return None

    def clipped_difference_sum(
        self, w: Vector, before: Vector, X: Matrix, y: Vector, bound: float, weights: Vector | None = None
    ) -> Vector:
        """As `Model.clipped_difference_sum`, of rank-one differences (p - p') x'; the label cancels."""
        known = np.asarray(_LOSS.one_hot(y, self.classes).any(axis=1))
        with np.errstate(all="ignore"):
            r = _LOSS.residual_change(self.predictors(w, X), self.predictors(w - before, X), y)
            return shortened_products(r, X, known, bound, weights).ravel()

    def rounding(self, w: Vector, bound: float) -> float:
        """As for the linear model, with the norms of W and z over all classes; clipping is no expansion."""
        error = predictor_error(w, bound, w.size // self.classes)
        return bound * (_LOSS.smoothness * error + RESIDUAL_ERROR)

    def evaluate(self, w: Vector, X: Matrix, y: Vector) -> tuple[Vector, Flags | None]:
        """Cross entropy in nats (n,), and True where another class has the largest z, or ties and is first."""
        z = self.predictors(w, X)
        return _LOSS.value(z, y), np.asarray(z.argmax(axis=1) != y)

    def evaluate_parts(self, w: Vector, parts: Sequence[tuple[Matrix, Vector]]) -> list[tuple[Vector, Flags | None]]:
        """`evaluate` of each part, one by one."""
        return [self.evaluate(w, X, y) for X, y in parts]

    def predictors(self, w: Vector, X: Matrix) -> Matrix:
        """z (n, C), class by class in memory: maxima and sums over a few classes then run along long rows."""
        return (w.reshape(self.classes, -1) @ X.T).T
