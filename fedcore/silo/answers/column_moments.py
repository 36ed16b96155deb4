"""The answer `column-moments`: means and squares of columns, each record scaled by itself to the `record_bound`.

Definition and sensitivity of the statistic: `fedcore.planning.sensitivity.column_moments`.
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
    """Means and squares of columns over all records."""

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

    def sum(self, phase: Phase, shard: Shard, chosen: np.ndarray | None, draw: Draw, *arrays: Vector) -> Vector:
        return shard.summed(lambda part, _: column_moment_sum(part.X, bound_of(phase), part.weights))


def column_moment_sum(X: Matrix, bound: float, weights: Vector | None = None) -> Vector:
    """Sum of t (2 p,) over a block of finite records X (n, p), entries clipped to [-1, 1], then rows to norm `bound`.

    Both clippings are repeated here, since the sensitivity rests on them. `weights` (n,): as for `moment_sum`.
    """
    rows = shortened(np.clip(X, -1.0, 1.0), bound)
    weighted = weighed(rows, weights)
    return np.concatenate([weighted.sum(axis=0), np.einsum("ij,ij->j", rows, weighted)])
