"""Largest eigenvalue of records from matrices and singular values, without the code under test."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from fedcore.arrays import Matrix, Vector
from fedcore.audit.answers.answer import Sum
from fedcore.audit.answers.moments import AuditedMoments
from fedcore.models import Objective
from fedcore.planning.phase import Phase
from fedcore.planning.plan import Plan
from fedcore.silo.answers.answer import Draw, Shard
from fedcore.silo.answers.largest_eigenvalue import LargestEigenvalue

FEATURES = 12
"""Features of the synthetic records: a plan of one number does not name them."""


class WatchedLargestEigenvalue(LargestEigenvalue):
    notes: list[Sum]

    def sum(self, phase: Phase, shard: Shard, chosen: np.ndarray | None, draw: Draw, *arrays: Vector) -> Vector:
        total = super().sum(phase, shard, chosen, draw, *arrays)
        self.notes.append(Sum(np.zeros_like(total), chosen, None))
        return total


class AuditedLargestEigenvalue(AuditedMoments):
    """A record x adds x x' (p^2,), x cut to norm B; the message is the largest singular value of the sum."""

    watched: ClassVar[type[Any]] = WatchedLargestEigenvalue
    no_canaries: str | None = "an eigenvalue is asked once, and records share it"

    def __init__(self, plan: Plan, loss: Objective | None, features: int = FEATURES) -> None:
        super().__init__(plan, loss)
        self.features = features

    def features_of(self, plan: Plan) -> int:
        return FEATURES

    def parts(self, w: Vector, X: Matrix, y: Vector, shifts: Vector | None = None) -> Matrix:
        found = []
        for row in X:
            cut = row * (self.allowed / max(self.allowed, math.hypot(*row)))
            found.append(np.outer(cut, cut).ravel())
        return np.array(found).reshape(len(X), -1)

    def folded(self, total: Vector) -> Vector:
        p = math.isqrt(len(total))
        return np.asarray(np.linalg.svd(total.reshape(p, p), compute_uv=False)[:1], dtype=np.float64)

    def loud(self, norm: float) -> float:
        return math.sqrt(norm)

    def extremes(self) -> tuple[tuple[Vector, Vector], ...]:
        return ()

    def farthest(self, x: Vector, y: float) -> tuple[Vector, float]:
        return 0.0 * x, y  # x and -x add the same, and no record is farther from x than zero
