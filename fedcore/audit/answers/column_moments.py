"""Means and squares of columns of single records, computed one by one without the code under test."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from fedcore.arrays import Matrix, Vector
from fedcore.audit.answers.answer import Sum
from fedcore.audit.answers.moments import AuditedMoments
from fedcore.planning.phase import Phase
from fedcore.planning.plan import Plan
from fedcore.silo.answers.answer import Draw, Shard
from fedcore.silo.answers.column_moments import ColumnMoments


class WatchedColumnMoments(ColumnMoments):
    notes: list[Sum]

    def sum(self, phase: Phase, shard: Shard, chosen: np.ndarray | None, draw: Draw, *arrays: Vector) -> Vector:
        total = super().sum(phase, shard, chosen, draw, *arrays)
        self.notes.append(Sum(np.zeros_like(total), chosen, None))
        return total


class AuditedColumnMoments(AuditedMoments):
    """A record u adds (u, u^2), entries cut to -1 to 1 and u to norm B."""

    watched: ClassVar[type[Any]] = WatchedColumnMoments

    def features_of(self, plan: Plan) -> int:
        return plan.problem.objective.dim // 2

    def parts(self, w: Vector, X: Matrix, y: Vector, shifts: Vector | None = None) -> Matrix:
        found = []
        for row in X:
            entries = [min(1.0, max(-1.0, float(x))) for x in row]
            factor = self.allowed / max(self.allowed, math.hypot(*entries))
            found.append([factor * x for x in entries] + [(factor * x) ** 2 for x in entries])
        return np.array(found)

    def loud(self, norm: float) -> float:
        return norm

    def extremes(self) -> tuple[tuple[Vector, Vector], ...]:
        """Two records with columns 1 and -0.32 in turn, as many as norm B allows.

        They are opposite in the next column.
        """
        one, other, left = np.zeros(self.features), np.zeros(self.features), self.allowed**2
        pair = 1.0 + 0.32**2
        at = 2 * min(int(left / pair), self.features // 2)
        one[:at:2] = other[1:at:2] = 1.0
        one[1:at:2] = other[:at:2] = -0.32
        if at < self.features:
            one[at] = min(1.0, math.sqrt(left - pair * at / 2))
            other[at] = -one[at]
        return ((one, other),)
