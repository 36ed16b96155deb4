"""Moments of single records, computed one by one without the code under test."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from fedcore.arrays import Matrix, Vector
from fedcore.audit.answers.answer import Sum
from fedcore.models import Objective
from fedcore.planning.phase import Phase
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem
from fedcore.planning.questions.statistics import record_bound_of
from fedcore.silo.answers.answer import Draw, Shard
from fedcore.silo.answers.moments import Moments


class WatchedMoments(Moments):
    notes: list[Sum]

    def sum(self, phase: Phase, shard: Shard, chosen: np.ndarray | None, draw: Draw, *arrays: Vector) -> Vector:
        total = super().sum(phase, shard, chosen, draw, *arrays)
        self.notes.append(Sum(np.zeros_like(total), chosen, None))
        return total


class AuditedMoments:
    """A record x, cut to norm B, adds B x and the upper triangle of x x'.

    Entries off the diagonal are multiplied by sqrt(2).
    """

    classes: int | None = None
    silent = True
    drawn = False
    watched: ClassVar[type[Any]] = WatchedMoments
    no_canaries: str | None = "moments are asked once, and records share their numbers"

    def __init__(self, plan: Plan, loss: Objective | None) -> None:
        bound = record_bound_of(plan.phases[0].question)
        if math.isinf(bound) or loss is not None:
            raise ValueError("a plan of moments has a bound on records, and no objective")
        self.allowed = bound
        self.features = self.features_of(plan)
        self.start: Vector = np.zeros(plan.problem.objective.dim)
        self.about = self.start

    def features_of(self, plan: Plan) -> int:
        """Features p of a record with p + p (p + 1) / 2 moments, the plan's dimension."""
        return (math.isqrt(8 * plan.problem.objective.dim + 9) - 3) // 2

    def parts(self, w: Vector, X: Matrix, y: Vector, shifts: Vector | None = None) -> Matrix:
        bound = self.allowed
        norms = np.array([math.hypot(*row) for row in X])
        X = X * (bound / np.maximum(norms, bound))[:, None]
        rows, columns = np.triu_indices(X.shape[1])
        return np.hstack([bound * X, X[:, rows] * X[:, columns] * np.where(rows == columns, 1.0, math.sqrt(2.0))])

    def folded(self, total: Vector) -> Vector:
        return total

    def loud(self, norm: float) -> float:
        return norm / self.allowed

    def extremes(self) -> tuple[tuple[Vector, Vector], ...]:
        """Two records of norm B at 120 degrees: the second moments of opposite ones are equal."""
        if self.features < 2:
            return ()
        one, other = np.zeros((2, self.features))
        one[0], other[0], other[-1] = self.allowed, -0.5 * self.allowed, math.sqrt(0.75) * self.allowed
        return ((one, other),)

    def farthest(self, x: Vector, y: float) -> tuple[Vector, float]:
        return -x, y

    def elsewhere(self, problem: Problem) -> Problem:
        # Delta is the only free parameter of the problem.
        fixed = 0.9 * min(problem.budget.delta(facts.n) for facts in problem.silos)
        return replace(problem, budget=replace(problem.budget, fixed_delta=fixed))
