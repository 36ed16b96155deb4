"""The answer `largest-eigenvalue`: that of the sum of x x^T over records, each scaled by itself to the `record_bound`.

It is no sum of one part per record, but a function of such a sum that one record moves by a bounded amount: how far,
and why, is in `fedcore.planning.curvature`.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedcore.arrays import Matrix, Vector
from fedcore.models import Objective
from fedcore.planning.curvature import half_diameter, largest_norm
from fedcore.planning.phase import Phase
from fedcore.planning.problem import Problem
from fedcore.silo.answers.answer import Draw, Piece
from fedcore.silo.answers.moments import Moments, bound_of, shortened, weighed

MOST_FEATURES = 2000
"""Of a record: the eigenvalues of a matrix of 2,000 rows take about a second."""


class LargestEigenvalue(Moments):
    """Asked once about all records, as moments are."""

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

    def sum(self, phase: Phase, piece: Piece, chosen: np.ndarray | None, draw: Draw, *asked: Vector) -> Vector:
        return largest_eigenvalue(piece.X, bound_of(phase), piece.weights)


def largest_eigenvalue(X: Matrix, bound: float, weights: Vector | None = None) -> Vector:
    """lambda_max of the sum over records of x x^T (1,), for finite X (n, p); rows are scaled to norm `bound` first.

    `weights` (n,): what each x x^T counts, of persons' rows. None: 1. Eigenvalues are LAPACK's, to the rounding of the
    norm of the matrix, far below the slack that is charged; their last sweeps, a part of order 1/p of the work, may
    take a little longer for one matrix than for another.
    """
    rows = shortened(X, bound)
    weighted = weighed(rows, weights)
    return np.asarray(np.linalg.eigvalsh(rows.T @ weighted)[-1:], dtype=np.float64)
