"""The answer `largest-eigenvalue`: that of the sum of x x^T over records, each scaled by itself to the `record_bound`.

It is a function of a sum that one record moves by a bounded amount; `fedcore.planning.curvature` proves the bound.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedcore.arrays import Matrix, Vector
from fedcore.models import Objective
from fedcore.planning.curvature import MOST_FEATURES, half_diameter, largest_norm
from fedcore.planning.phase import Phase
from fedcore.planning.problem import Problem
from fedcore.silo.answers.answer import Draw, Shard
from fedcore.silo.answers.moments import Moments, bound_of, shortened, weighed
from fedcore.summation import block_rows, blocks_of, tree_sum


class LargestEigenvalue(Moments):
    """Largest eigenvalue of second moments over all records."""

    name: ClassVar[str] = "largest-eigenvalue"
    weighs: ClassVar[bool] = True
    about: ClassVar[str] = "the largest eigenvalue of its records"

    @classmethod
    def misfit(cls, problem: Problem, loss: Objective | None, n: int, features: int) -> str | None:
        if features > MOST_FEATURES:
            return f"its records have {features} features, and at most {MOST_FEATURES} are supported"
        return super().misfit(problem, loss, n, features)

    @classmethod
    def numbers(cls, features: int) -> int:
        return 1

    @classmethod
    def half_diameter(cls, problem: Problem, phase: Phase) -> float:
        return half_diameter(bound_of(phase))

    @classmethod
    def largest_norm(cls, problem: Problem, phase: Phase) -> float:
        return largest_norm(bound_of(phase))

    def sum(self, phase: Phase, shard: Shard, chosen: np.ndarray | None, draw: Draw, *arrays: Vector) -> Vector:
        return largest_eigenvalue(shard.X, bound_of(phase), shard.weights, shard.places)


def largest_eigenvalue(X: Matrix, bound: float, weights: Vector | None = None, places: int = 1) -> Vector:
    """lambda_max of the sum over records of x x^T (1,), for finite X (n, p); rows are scaled to norm `bound` first.

    `weights` (n,): of each x x^T, where persons have `places` rows each. None: 1. LAPACK computes the eigenvalues; the
    charge covers its rounding (`fedcore.planning.curvature.SOLVER`). Its last sweeps, a part of order 1/p of the work,
    may take a little longer for one matrix than for another.
    """

    def products(at: slice) -> Matrix:
        rows = shortened(X[at], bound)
        return rows.T @ weighed(rows, None if weights is None else weights[at])

    total = tree_sum(blocks_of(len(X), block_rows(X.shape[1], places)), products)
    return np.asarray(np.linalg.eigvalsh(total)[-1:], dtype=np.float64)
