"""What a model is to the silo and to reports: numbers of weights, clipped sums, losses and wrong predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedcore.arrays import Matrix, Vector
from fedcore.draws.stream import Draws

Flags = npt.NDArray[np.bool_]
Sums = Callable[[Vector], list[Vector]]
"""Of w (d,), the sum (d,) of each part, in arrays of their own."""


class Model(Protocol):
    """A model with its loss; weights are one vector (d,) whatever its shape, so methods and ledgers know no model.

    Conventions: X float64 (n, features), y float64 (n,), w float64 (d,). Norms are over all weights together: one joint
    norm, one clipping bound. To add one: a file here, a member of `Objective`, and the branch of
    `fedcore.experiment.problem.training_loss` that makes it from the config.
    """

    def weights(self, features: int) -> int:
        """d, for records of so many features (bias column included)."""
        ...

    def start(self, features: int, generator: Draws) -> Vector:
        """w_0 (d,), before any record is seen; `generator` is public, so all silos and the server have the same one."""
        ...

    def bounds(self, X: Matrix, y: Vector, clip: float) -> Vector:
        """What clips each record (n,), computed once: what `clipped_gradient_sum` needs to know of it and of `clip`."""
        ...

    def clipped_gradient_sum(
        self, w: Vector, X: Matrix, y: Vector, bounds: Vector, weights: Vector | None = None
    ) -> Vector:
        """Sum over records of a block of their clipped gradients (d,), in an array of its own; replacing one record
        moves it by at most 2 clip in norm, and rounding (`fedcore.summation`: sums of more go through its tree).

        `weights` (n,), from 0 to 1: what each is multiplied by after it was clipped, where rows are those of persons;
        with weights that add up to at most 1 over a person's rows, replacing all of these moves the sum by as much.
        A record whose gradient is not a number contributes zero. No record, and any number of them, are fine.
        """
        ...

    def clipped_gradient_sums(
        self, parts: Sequence[tuple[Matrix, Vector, Vector]], weights: Sequence[Vector] | None = None
    ) -> Sums | None:
        """`clipped_gradient_sum` of several (X, y, bounds) at one w in one pass, bit for bit; None if there is none.

        `weights`: of each part's rows; None: there are none.
        """
        ...

    def clipped_difference_sum(
        self, w: Vector, before: Vector, X: Matrix, y: Vector, bound: float, weights: Vector | None = None
    ) -> Vector:
        """Sum over records of a block of gradient(w) - gradient(before), each shortened to norm `bound` (d,).

        Replacing one record moves it by at most 2 bound (1 + 1e-6) in norm, rounding included, for steps |w - before|
        down to 1e-14 of the weights too: differences are taken before products, and their norms are never too small.
        `weights` (n,): as for `clipped_gradient_sum`; at weight 0 a record adds exactly nothing. A record whose
        difference is not finite contributes zero, so do all where `bound`, which is above 0, is below 1e-100.
        """
        ...

    def rounding(self, w: Vector, bound: float) -> float:
        """How far a clipped gradient at w may move, in norm, if its predictors are rounded in another order.

        For records of norm at most `bound`; infinite where a gradient may jump. Public: it depends on no record.
        """
        ...

    def predictors(self, w: Vector, X: Matrix) -> npt.NDArray[np.float64]:
        """z of each record: (n,), or with an output per class (n, C)."""
        ...

    def evaluate(self, w: Vector, X: Matrix, y: Vector) -> tuple[Vector, Flags | None]:
        """Loss of each record (n,), never a smoothed one, and whether its class is predicted wrongly (n,).

        None in place of the second where labels are no classes.
        """
        ...

    def evaluate_parts(self, w: Vector, parts: Sequence[tuple[Matrix, Vector]]) -> list[tuple[Vector, Flags | None]]:
        """`evaluate` of several (X, y) at one w, bit for bit."""
        ...
