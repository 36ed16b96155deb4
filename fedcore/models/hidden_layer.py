"""The shared part of networks of one hidden layer: layers in one vector, clipped sums, products.

z1 = W1 x, h of z1 by the activation, z2 = W2 (h, 1). One vector w holds W1 (hidden, features), row after row, then W2
(outputs, hidden + 1), whose last column is the bias of the outputs. The bias of a hidden unit is the weight of the
record's bias column.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedcore.arrays import Matrix, Vector
from fedcore.draws.stream import Draws
from fedcore.losses.traits import LossTraits
from fedcore.models.activations import UNITS, Activation, Units
from fedcore.models.model import Flags, Sums
from fedcore.models.network_difference import clipped_difference_sum
from fedcore.models.norms import exact_bound, factors, norms_of

Start = Literal["fan-in", "literal"]
"""Half-width of the uniform distribution of a layer's first weights: 1/sqrt(fan_in), or sqrt(fan_in)."""


class HiddenLayer(LossTraits):
    """A network of one hidden layer; its gradients' joint norms need no per-record gradient.

    A model defines `outputs`, `known`, `residual` and `residual_change`. A record's gradient is delta2 (h, 1)' in W2,
    with delta2 the loss's gradient in z2. In W1 it is delta1 x', with delta1 = W2' delta2 times the units' slopes. So
    its joint norm over all weights is `|g|^2 = |delta2|^2 (|h|^2 + 1) + |delta1|^2 |x|^2`. Two products of matrices
    then sum over records the terms times their factors. Source: Goodfellow, Efficient per-example gradient
    computations, 2015; spec dp-scaffold 9, vectorisation.
    """

    hidden: int
    activation: Activation

    @property
    def outputs(self) -> int:
        """Number of outputs, the rows of W2."""
        raise NotImplementedError

    def known(self, y: Vector) -> Flags:
        """True for labels (n,) that the loss is about; records with other labels contribute zero."""
        raise NotImplementedError

    def residual(self, z: Matrix, y: Vector) -> Matrix:
        """Derivative of the loss in z2 (n, outputs)."""
        raise NotImplementedError

    def residual_change(self, z: Matrix, dz: Matrix, y: Vector) -> Matrix:
        """residual(z, y) - residual(z - dz, y) (n, outputs), accurate for small dz."""
        raise NotImplementedError

    @property
    def lipschitz(self) -> float:
        """Infinite: gradients grow with the weights, so `model.clip` has to be given."""
        return math.inf

    @property
    def smoothness(self) -> float:
        """Infinite: curvature grows with the weights, and ReLU units have corners."""
        return math.inf

    @property
    def units(self) -> Units:
        """The functions of the activation."""
        return UNITS[self.activation]

    def weights(self, features: int) -> int:
        """Number of weights, hidden features + outputs (hidden + 1)."""
        return self.hidden * features + self.outputs * (self.hidden + 1)

    def start(self, features: int, generator: Draws, spread: Start = "fan-in") -> Vector:
        """Weights drawn uniformly in +-1/sqrt(fan_in), layer by layer (d,).

        At 0 no gradient would reach W1. The range is the default of the papers' framework (spec dp-scaffold 7.4), with
        one difference. The first layer's fan_in counts the bias column, if there is one, since no model knows which
        feature is the bias. `literal`: in +-sqrt(fan_in), as the paper of DIFF2 prints (spec diff2 A5).
        """
        first = generator.uniform(-1.0, 1.0, self.hidden * features)
        second = generator.uniform(-1.0, 1.0, self.outputs * (self.hidden + 1))
        for layer, fan_in in ((first, features), (second, self.hidden)):
            if spread == "literal":
                layer *= math.sqrt(fan_in)
            else:
                layer /= math.sqrt(fan_in)
        return np.concatenate([first, second])

    def bounds(self, X: Matrix, y: Vector, clip: float) -> Vector:
        """Largest norm of each record's computed gradient (n,): `clip` rounded down; 0 for an unknown label."""
        return np.asarray(self.known(y) * exact_bound(clip, self.outputs + self.hidden + X.shape[1]))

    def clipped_gradient_sum(
        self, w: Vector, X: Matrix, y: Vector, bounds: Vector, weights: Vector | None = None
    ) -> Vector:
        """Sum over records of their gradients, shortened to `bounds` in joint norm, weighted (d,).

        See `Model`. A record contributes zero where its bound is 0. It also does where an intermediate number, or the
        square of a layer's norm, overflows or is NaN. All records go through all products, so no row's bits depend on
        the outcome of another.
        """
        W1, W2 = self.layers(w, X.shape[1])
        # A warning, which a filter may turn into an exception, would reveal that there is such a record.
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            h = self._hidden(W1, X)
            delta2 = self.residual((W2 @ h.T).T, y)
            delta1 = (W2[:, :-1].T @ delta2.T).T
            self.units.chain(delta1, h[:, :-1])
            norms = np.hypot(norms_of(delta2) * norms_of(h), norms_of(delta1) * norms_of(X))
            scale = factors(norms, bounds, weights)
            short, weighted = X * scale[:, None], delta2 * scale[:, None]
            lost = ~(norms < math.inf)
            if lost.any():
                # Their factor is 0 or NaN, and 0 times infinity would spoil the sums of all records.
                for rows in (h, delta1, short, weighted):
                    rows[lost] = 0.0
            total = np.empty(len(w))
            first, second = self.layers(total, X.shape[1])
            np.matmul(delta1.T, short, out=first)
            np.matmul(weighted.T, h, out=second)
        return total

    def clipped_gradient_sums(
        self, parts: Sequence[tuple[Matrix, Vector, Vector]], weights: Sequence[Vector] | None = None
    ) -> Sums | None:
        """None: hidden units make products large enough by themselves."""
        return None

    def clipped_difference_sum(
        self, w: Vector, before: Vector, X: Matrix, y: Vector, bound: float, weights: Vector | None = None
    ) -> Vector:
        """`clipped_difference_sum` of `network_difference`, for this network."""
        return clipped_difference_sum(self, w, before, X, y, bound, weights)

    def rounding(self, w: Vector, bound: float) -> float:
        """Infinite: no constant bounds how much a rounded input changes a gradient.

        At a corner the last bit of an input decides if a ReLU unit is on. A softplus unit's part of a gradient may
        change arbitrarily fast.
        """
        return math.inf

    def products(self, w: Vector, X: Matrix) -> Matrix:
        """z2 (n, outputs)."""
        W1, W2 = self.layers(w, X.shape[1])
        return (W2 @ self._hidden(W1, X).T).T

    def layers(self, w: Vector, features: int) -> tuple[Matrix, Matrix]:
        """W1 (hidden, features) and W2 (outputs, hidden + 1), as views."""
        first = self.hidden * features
        return w[:first].reshape(self.hidden, features), w[first:].reshape(self.outputs, self.hidden + 1)

    def _hidden(self, W1: Matrix, X: Matrix) -> Matrix:
        """(h, 1) of each record (n, hidden + 1)."""
        h = np.ones((self.hidden + 1, len(X))).T
        h[:, :-1] = self.units.values((W1 @ X.T).T)
        return h
