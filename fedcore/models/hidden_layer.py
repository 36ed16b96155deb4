"""What networks of one hidden layer share, whatever their outputs: layers in one vector, clipped sums, products.

z1 = W1 x, h of z1 by the activation, z2 = W2 (h, 1). One vector w holds W1 (hidden, features), then W2 (outputs,
hidden + 1) whose last column is the bias of the outputs, row after row. The bias of a hidden unit is the weight of the
record's bias column.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedcore.arrays import Matrix, Vector
from fedcore.draws.stream import Draws
from fedcore.models.activations import UNITS, Activation, Units
from fedcore.models.model import Flags, Sums
from fedcore.models.network_difference import clipped_difference_sum
from fedcore.models.norms import exact_bound, factors, norms_of

Start = Literal["fan-in", "literal"]
"""Half-width of the uniform distribution that a layer's weights are drawn from: 1/sqrt(fan_in), or sqrt(fan_in)."""


class HiddenLayer:
    """A model says `outputs`, which labels are `known`, and `residual` with `residual_change` of its loss.

    A record's gradient is delta2 (h, 1)' in W2 and delta1 x' in W1, delta2 the loss's in z2 and delta1 = W2' delta2
    times the units' slopes. So its joint norm over all weights needs no per-record gradient:
    |g|^2 = |delta2|^2 (|h|^2 + 1) + |delta1|^2 |x|^2. Two products of matrices then sum what is weighted record by
    record. Source: Goodfellow, Efficient per-example gradient computations, 2015; spec dp-scaffold 9, vectorisation.
    """

    hidden: int
    activation: Activation

    @property
    def outputs(self) -> int:
        """Rows of W2."""
        raise NotImplementedError

    def known(self, y: Vector) -> Flags:
        """Which labels (n,) the loss is about; records with others contribute zero."""
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
        """Infinite: curvature grows with the weights; of ReLU units there are corners, too."""
        return math.inf

    @property
    def units(self) -> Units:
        """What the activation does."""
        return UNITS[self.activation]

    def weights(self, features: int) -> int:
        """hidden features + outputs (hidden + 1)."""
        return self.hidden * features + self.outputs * (self.hidden + 1)

    def start(self, features: int, generator: Draws, spread: Start = "fan-in") -> Vector:
        """Uniform in +-1/sqrt(fan_in), layer by layer (d,): at 0 no gradient would ever reach W1.

        As the papers' framework does by default (spec dp-scaffold 7.4), but that fan_in of the first layer counts the
        bias column, if there is one, since no model knows that a record's feature is one. `literal`: in
        +-sqrt(fan_in), as the paper of DIFF2 prints (spec diff2 A5).
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
        """Largest norm of each record's computed gradient (n,): `clip` rounded down; 0 for a label
        that is not known."""
        return np.asarray(self.known(y) * exact_bound(clip, self.outputs + self.hidden + X.shape[1]))

    def clipped_gradient_sum(
        self, w: Vector, X: Matrix, y: Vector, bounds: Vector, weights: Vector | None = None
    ) -> Vector:
        """Sum over records of their gradients, shortened to `bounds` in joint norm, weighted (d,); see `Model`.

        A record contributes zero where its bound is 0, and where a number on the way, or the square of a layer's norm,
        overflows or is none. All records go through all products, so no row's bits depend on what becomes of another.
        """
        W1, W2 = self.layers(w, X.shape[1])
        # A warning, which a filter may turn into an exception, would tell that there is such a record.
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            h = self._hidden(W1, X)
            delta2 = self.residual((W2 @ h.T).T, y)
            delta1 = delta2 @ W2[:, :-1]
            self.units.chain(delta1, h[:, :-1])
            norms = np.hypot(norms_of(delta2) * norms_of(h), norms_of(delta1) * norms_of(X))
            scale = factors(norms, bounds, weights)
            short, weighted = X * scale[:, None], delta2 * scale[:, None]
            lost = ~(norms < math.inf)
            if lost.any():
                # Their factor is 0 or no number, and 0 times infinity would spoil the sums of all.
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
        """The function of this name, for this network."""
        return clipped_difference_sum(self, w, before, X, y, bound, weights)

    def rounding(self, w: Vector, bound: float) -> float:
        """Infinite: at a corner the last bit of an input decides whether a ReLU unit is on, and no constant bounds how
        fast a softplus unit's part of a gradient changes."""
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
        h = np.ones((len(X), self.hidden + 1))
        h[:, :-1] = self.units.values(X @ W1.T)
        return h
