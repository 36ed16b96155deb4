"""A network of one hidden layer: features -> hidden ReLU units -> C classes, softmax cross entropy; not convex.

z1 = W1 x, h = max(z1, 0), z2 = W2 (h, 1). One vector w holds W1 (hidden, features), then W2 (C, hidden + 1) whose last
column is the bias of the classes, row after row. The bias of a hidden unit is the weight of the record's bias column.
With 60 features, a bias column, 200 units and 10 classes w has 14,210 entries (spec dp-scaffold 7.4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.arrays import Matrix, Vector
from fedcore.hyperparameters import DECLARED, Count
from fedcore.losses.softmax import MOST_CLASSES, Softmax
from fedcore.models.model import Flags, Sums

_LOSS = Softmax()
_TINY = float(np.finfo(np.float64).tiny)  # the least normal number
_LEAST_CLIP = 1e-100  # so far above the subnormal numbers that their rounding cannot lift a record above it


@dataclass(frozen=True, config=DECLARED)
class OneHiddenLayer:
    """`classes`: C, labels are their numbers 0, ..., C-1. `hidden`: units of the hidden layer.

    A record's gradient is delta2 (h, 1)' in W2 and delta1 x' in W1, delta2 = p - e_y and delta1 = W2' delta2 where
    z1 > 0, else 0 (also at the corner). So its joint norm over all weights needs no per-record gradient:
    |g|^2 = |delta2|^2 (|h|^2 + 1) + |delta1|^2 |x|^2. Two products of matrices then sum what is weighted record by
    record. Source: Goodfellow, Efficient per-example gradient computations, 2015; spec dp-scaffold 9, vectorisation.
    """

    classes: Annotated[Count, Field(ge=2, le=MOST_CLASSES)]
    hidden: Annotated[Count, Field(ge=1)]

    @property
    def lipschitz(self) -> float:
        """Infinite: gradients grow with the weights, so `model.clip` has to be given."""
        return math.inf

    @property
    def smoothness(self) -> float:
        """Infinite: there are corners, and curvature grows with the weights."""
        return math.inf

    def weights(self, features: int) -> int:
        """hidden features + C (hidden + 1)."""
        return self.hidden * features + self.classes * (self.hidden + 1)

    def start(self, features: int, generator: np.random.Generator) -> Vector:
        """Uniform in +-1/sqrt(fan_in), layer by layer (d,): at 0 no gradient would ever reach W1.

        As the papers' framework does by default (spec dp-scaffold 7.4), but that fan_in of the first layer counts the
        bias column, if there is one, since no model knows that a record's feature is one.
        """
        first = generator.uniform(-1.0, 1.0, self.hidden * features) / math.sqrt(features)
        second = generator.uniform(-1.0, 1.0, self.classes * (self.hidden + 1)) / math.sqrt(self.hidden)
        return np.concatenate([first, second])

    def bounds(self, X: Matrix, y: Vector, clip: float) -> Vector:
        """Largest norm of each record's computed gradient (n,): `clip` rounded down; 0 where y is no class.

        The norm is computed up to a relative error of about (C + hidden + features) 2^-53; factors and what they
        multiply are rounded once each.
        """
        exact = 1.0 - (self.classes + self.hidden + X.shape[1] + 16) * 2.0**-52
        known = _LOSS.one_hot(y, self.classes).any(axis=1)
        return np.asarray(known * (clip * exact if clip >= _LEAST_CLIP else 0.0))

    def clipped_gradient_sum(
        self, w: Vector, X: Matrix, y: Vector, bounds: Vector, weights: Vector | None = None
    ) -> Vector:
        """Sum over records of their gradients, shortened to `bounds` in joint norm, weighted (d,); see `Model`.

        A record contributes zero where its bound is 0, and where a number on the way, or the square of a layer's norm,
        overflows or is none. All records go through all products, so no row's bits depend on what becomes of another.
        """
        W1, W2 = self._layers(w, X.shape[1])
        # A warning, which a filter may turn into an exception, would tell that there is such a record.
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            h = self._hidden(W1, X)
            delta2 = _LOSS.residual((W2 @ h.T).T, y)
            delta1 = delta2 @ W2[:, :-1]
            np.copyto(delta1, 0.0, where=h[:, :-1] <= 0.0)
            norms = np.hypot(_norms(delta2) * _norms(h), _norms(delta1) * _norms(X))
            # min(1, bounds / norms), whatever their sizes: norms are above 0, since no delta2 is below 1e-148.
            scale = bounds / np.maximum(norms, bounds)
            if weights is not None:
                scale *= weights
            scale[scale < _TINY] = 0.0  # below it a quotient may be rounded up by much
            short, weighted = X * scale[:, None], delta2 * scale[:, None]
            lost = ~(norms < math.inf)
            if lost.any():
                # Their factor is 0 or no number, and 0 times infinity would spoil the sums of all.
                for rows in (h, delta1, short, weighted):
                    rows[lost] = 0.0
            total = np.empty(len(w))
            first, second = self._layers(total, X.shape[1])
            np.matmul(delta1.T, short, out=first)
            np.matmul(weighted.T, h, out=second)
        return total

    def clipped_gradient_sums(
        self, parts: Sequence[tuple[Matrix, Vector, Vector]], weights: Sequence[Vector] | None = None
    ) -> Sums | None:
        """None: classes make products large enough by themselves."""
        return None

    def rounding(self, w: Vector, bound: float) -> float:
        """Infinite: at a corner the last bit of an input decides whether a unit is on."""
        return math.inf

    def predictors(self, w: Vector, X: Matrix) -> Matrix:
        """z2 (n, C)."""
        W1, W2 = self._layers(w, X.shape[1])
        return (W2 @ self._hidden(W1, X).T).T

    def evaluate(self, w: Vector, X: Matrix, y: Vector) -> tuple[Vector, Flags | None]:
        """Cross entropy in nats (n,), and whether another class has the largest z2 (n,); of equal ones the first."""
        z = self.predictors(w, X)
        return _LOSS.value(z, y), np.asarray(z.argmax(axis=1) != y)

    def evaluate_parts(self, w: Vector, parts: Sequence[tuple[Matrix, Vector]]) -> list[tuple[Vector, Flags | None]]:
        """One by one."""
        return [self.evaluate(w, X, y) for X, y in parts]

    def _layers(self, w: Vector, features: int) -> tuple[Matrix, Matrix]:
        """W1 (hidden, features) and W2 (C, hidden + 1), as views."""
        first = self.hidden * features
        return w[:first].reshape(self.hidden, features), w[first:].reshape(self.classes, self.hidden + 1)

    def _hidden(self, W1: Matrix, X: Matrix) -> Matrix:
        """(h, 1) of each record (n, hidden + 1)."""
        h = np.ones((len(X), self.hidden + 1))
        np.maximum(X @ W1.T, 0.0, out=h[:, :-1])
        return h


def _norms(rows: Matrix) -> Vector:
    """Norm of each row (n,), at least 1.5e-154: squares below the normal numbers are made up for, not lost."""
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", rows, rows) + _TINY))
