"""The interface of a model for silos and reports: weights, clipped sums, losses, wrong predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedcore.arrays import Matrix, Vector
from fedcore.draws.stream import Draws
from fedcore.losses import LabelSet, Link

Flags = npt.NDArray[np.bool_]
Sums = Callable[[Vector], Matrix]
"""A function from w (d,) to the sum (d,) of each part, in arrays of their own."""


class Model(Protocol):
    """A model with its loss; weights are one vector (d,), so methods and ledgers need no shape.

    Conventions: X float64 (n, features), y float64 (n,), w float64 (d,). Norms are over all weights together: one joint
    norm, one clipping bound. To add a model: a file here, a member of `Objective`, and the branch of
    `fedcore.experiment.problem.training_loss` that makes it from the config.
    """

    @property
    def labels(self) -> LabelSet:
        """The labels that the loss takes."""
        ...

    @property
    def link(self) -> Link:
        """The map from predictors to predictions."""
        ...

    def weights(self, features: int) -> int:
        """d, the number of weights for records of `features` (bias column included)."""
        ...

    def start(self, features: int, generator: Draws) -> Vector:
        """w_0 (d,), drawn before any record is seen, by a public generator that server and silos share."""
        ...

    def bounds(self, X: Matrix, y: Vector, clip: float) -> Vector:
        """Bound of each record for `clipped_gradient_sum` (n,), computed once from the record and `clip`."""
        ...

    def clipped_gradient_sum(
        self, w: Vector, X: Matrix, y: Vector, bounds: Vector, weights: Vector | None = None
    ) -> Vector:
        """Sum over records of a block of their clipped gradients (d,), in an array of its own.

        Replacing one record moves it by at most 2 clip in norm, and rounding. (Sums of more records go through the tree
        of `fedcore.summation`.) `weights` (n,), from 0 to 1: factors on clipped gradients, where rows are those of
        persons. If the weights of a person's rows add up to at most 1, replacing all of these moves the sum by as much.
        A record whose gradient is NaN contributes zero. Any number of records is allowed, and none.
        """
        ...

    def clipped_gradient_sums(
        self, parts: Sequence[tuple[Matrix, Vector, Vector]], weights: Sequence[Vector] | None = None
    ) -> Sums | None:
        """`clipped_gradient_sum` of several (X, y, bounds) at one w in one pass, bit for bit.

        `weights`: of each part's rows; None: all 1. Returns None for a model without such a pass.
        """
        ...

    def clipped_difference_sum(
        self, w: Vector, before: Vector, X: Matrix, y: Vector, bound: float, weights: Vector | None = None
    ) -> Vector:
        """Sum over a block's records of gradient(w) - gradient(before), each shortened (d,).

        `bound`: the norm to which a difference is shortened. One replaced record moves the sum by at most 2 bound (1 +
        1e-6) in norm, rounding included. That holds for steps |w - before| down to 1e-14 of the weights too. For
        differences are taken before products, and their norms are never too small. `weights` (n,): as for
        `clipped_gradient_sum`; at weight 0 a record adds exactly 0. A record whose difference is not finite contributes
        zero. So do all where `bound`, which is above 0, is below 1e-100.
        """
        ...

    def rounding(self, w: Vector, bound: float) -> float:
        """Bound on the move of a clipped gradient at w, in norm, when its predictors round anew.

        It covers any order of rounding, for records of norm at most `bound`; infinite where a gradient may jump.
        Public: it depends on no record.
        """
        ...

    def predictors(self, w: Vector, X: Matrix) -> npt.NDArray[np.float64]:
        """z of each record: (n,), or with an output per class (n, C)."""
        ...

    def evaluate(self, w: Vector, X: Matrix, y: Vector) -> tuple[Vector, Flags | None]:
        """Unsmoothed loss of each record (n,), and True where its class is predicted wrongly (n,).

        None in place of the second where labels are no classes.
        """
        ...

    def evaluate_parts(self, w: Vector, parts: Sequence[tuple[Matrix, Vector]]) -> list[tuple[Vector, Flags | None]]:
        """`evaluate` of several (X, y) at one w, bit for bit."""
        ...
