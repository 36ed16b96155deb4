"""The answer `moments`: first and second moments of records, each scaled by itself to the phase's `record_bound`.

Definition and sensitivity of the statistic: `fedcore.planning.sensitivity.moments`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np

from fedcore.arrays import Matrix, Vector
from fedcore.models import Objective
from fedcore.planning.phase import Phase
from fedcore.planning.problem import Problem
from fedcore.planning.questions.statistics import record_bound_of
from fedcore.planning.sensitivity.moments import half_diameter, largest_norm, length
from fedcore.silo.answers.answer import Draw, Shard, Sums


class Moments:
    """First and second moments over all records; nothing is precomputed."""

    name: ClassVar[str] = "moments"
    samples: ClassVar[bool] = False
    weighs: ClassVar[bool] = True
    about: ClassVar[str] = "moments of its records"

    @classmethod
    def misfit(cls, problem: Problem, loss: Objective | None, n: int, features: int) -> str | None:
        if loss is not None:
            return "moments have no objective, and the agreement names one"
        if problem.objective.dim != (numbers := cls.numbers(features)):
            return f"the plan says {problem.objective.dim} numbers, {cls.about} have {numbers}"
        return None

    @classmethod
    def numbers(cls, features: int) -> int:
        """Length of the statistic for records of so many features."""
        return length(features)

    @classmethod
    def scale(cls, problem: Problem, *arrays: Vector) -> float:
        return 1.0

    @classmethod
    def half_diameter(cls, problem: Problem, phase: Phase) -> float:
        return half_diameter(bound_of(phase))

    @classmethod
    def largest_norm(cls, problem: Problem, phase: Phase) -> float:
        return largest_norm(bound_of(phase))

    @classmethod
    def of(cls, problem: Problem, loss: Objective | None, X: Matrix, y: Vector, record_bound: float) -> Self:
        return cls()

    @classmethod
    def batched(cls, parts: Sequence[tuple[Self, Shard]]) -> Sums | None:
        return None

    def sum(self, phase: Phase, shard: Shard, chosen: np.ndarray | None, draw: Draw, *arrays: Vector) -> Vector:
        return shard.summed(lambda part, _: moment_sum(part.X, bound_of(phase), part.weights))


def bound_of(phase: Phase) -> float:
    """Norm to which the records of a phase are scaled; infinite if it names none."""
    return record_bound_of(phase.question)


def moment_sum(X: Matrix, bound: float, weights: Vector | None = None) -> Vector:
    """Sum of t (length(p),) over a block of finite records X (n, p); a row longer than `bound` is scaled to it first.

    `weights` (n,): of each t, for persons' rows; None: 1. The mean of a person's t lies in their convex hull, so norm
    and sensitivity are at most those of single records. No t(x) is formed: the second part is the upper triangle of
    X^T X.
    """
    rows = shortened(X, bound)
    weighted = weighed(rows, weights)
    products = rows.T @ weighted
    products *= math.sqrt(2.0)
    diagonal = np.einsum("ii->i", products)
    diagonal *= math.sqrt(0.5)
    return np.concatenate([bound * weighted.sum(axis=0), products[np.triu_indices(X.shape[1])]])


def shortened(X: Matrix, bound: float) -> Matrix:
    """Rows of finite X (n, p), each longer one scaled to norm `bound`, up to rounding.

    Rows are measured relative to their largest entry, so squares neither overflow nor vanish.
    """
    top = np.abs(X).max(axis=1, initial=0.0)
    top[top == 0] = 1.0
    with np.errstate(over="ignore", under="ignore"):
        unit = X / top[:, None]
        norm = np.sqrt(np.einsum("ij,ij->i", unit, unit))  # in [1, sqrt(p)], or 0
        long = norm > bound / top
        return np.where(long[:, None], unit * (bound / np.where(long, norm, 1.0))[:, None], X)


def weighed(rows: Matrix, weights: Vector | None) -> Matrix:
    """Rows (n, p), each times its weight; unchanged without weights."""
    return rows if weights is None else rows * weights[:, None]
