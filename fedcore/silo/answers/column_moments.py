"""The answer `column-moments`: means and squares of columns, each record scaled by itself to the `record_bound`.

What the statistic is, and how far one record moves it: `fedcore.planning.sensitivity.column_moments`.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedcore.arrays import Matrix, Vector
from fedcore.planning.phase import Phase
from fedcore.planning.problem import Problem
from fedcore.planning.sensitivity.column_moments import half_diameter, largest_norm, length
from fedcore.silo.answers.answer import Draw, Shard
from fedcore.silo.answers.moments import Moments, bound_of, shortened, weighed


class ColumnMoments(Moments):
    """Asked once about all records, as moments are."""

    name: ClassVar[str] = "column-moments"
    weighs: ClassVar[bool] = True
    about: ClassVar[str] = "moments of its columns"

    @classmethod
    def numbers(cls, features: int) -> int:
        return length(features)

    @classmethod
    def half_diameter(cls, problem: Problem, phase: Phase) -> float:
        return half_diameter(bound_of(phase))

    @classmethod
    def largest_norm(cls, problem: Problem, phase: Phase) -> float:
        return largest_norm(bound_of(phase))

    def sum(self, phase: Phase, shard: Shard, chosen: np.ndarray | None, draw: Draw, *asked: Vector) -> Vector:
        return shard.summed(lambda part, _: column_moment_sum(part.X, bound_of(phase), part.weights))


def column_moment_sum(X: Matrix, bound: float, weights: Vector | None = None) -> Vector:
    """Sum over a block of records X (n, p), finite, of t (2 p,): entries are cut to -1 to 1, then rows to norm `bound`.

    Both here, whatever the records were prepared to: the sensitivity rests on it. `weights` (n,): as of `moment_sum`.
    """
    rows = shortened(np.clip(X, -1.0, 1.0), bound)
    weighted = weighed(rows, weights)
    return np.concatenate([weighted.sum(axis=0), np.einsum("ij,ij->j", rows, weighted)])
