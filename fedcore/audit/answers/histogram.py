"""Cells of single records in a histogram of labels by scores, without the code under test."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from fedcore.arrays import Matrix, Vector
from fedcore.audit.answers.answer import Sum
from fedcore.audit.answers.gradient import AuditedGradient
from fedcore.models import Classifier, Objective, OneHiddenLayer, model_of
from fedcore.planning.phase import Phase
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem
from fedcore.silo.answers.answer import Draw, Shard
from fedcore.silo.answers.histogram import Histogram


class WatchedHistogram(Histogram):
    notes: list[Sum]

    def sum(self, phase: Phase, shard: Shard, chosen: np.ndarray | None, draw: Draw, *arrays: Vector) -> Vector:
        self.notes.append(Sum(arrays[0].copy(), chosen, None))
        return super().sum(phase, shard, chosen, draw, *arrays)


class AuditedHistogram:
    """A record adds 1 to the cell of its label and the bin of its score, or of the predicted class."""

    silent = False
    drawn = False
    watched: ClassVar[type[Any]] = WatchedHistogram
    no_canaries: str | None = "records share the cells of a histogram"

    def __init__(self, plan: Plan, loss: Objective | None) -> None:
        if loss is None or plan.problem.evaluation is None:
            raise ValueError("there is no model to evaluate")
        of_gradients = AuditedGradient(plan, loss)
        self.evaluation, self.loss, self.problem = plan.problem.evaluation, loss, plan.problem
        self.features, self.classes = of_gradients.features, of_gradients.classes
        self.start, self.allowed = of_gradients.start, 1.0
        self.about = self.start

    def parts(self, w: Vector, X: Matrix, y: Vector, shifts: Vector | None = None) -> Matrix:
        out = np.zeros((len(y), self.evaluation.cells))
        for row, (x, label) in enumerate(zip(X, y, strict=True)):
            if isinstance(self.loss, Classifier):
                of, known = int(label), bool(np.any(x != 0.0)) and label in range(self.loss.classes)
            else:
                of, known = int(label > 0), abs(label) == 1.0
            if known:
                out[row, of * self.evaluation.columns + self._column(w, x)] = 1.0
        return out

    def folded(self, total: Vector) -> Vector:
        return total

    def loud(self, norm: float) -> float:
        return norm

    def extremes(self) -> tuple[tuple[Vector, Vector], ...]:
        return ()

    def farthest(self, x: Vector, y: float) -> tuple[Vector, float]:
        return x, -y if self.classes is None else -1.0  # a label outside of the classes counts in no cell

    def elsewhere(self, problem: Problem) -> Problem:
        objective = replace(problem.objective, diameter=1.5 * problem.objective.diameter)
        return replace(problem, objective=objective)

    def _column(self, w: Vector, x: Vector) -> int:
        z = np.atleast_1d(model_of(self.loss).predictors(w, x[None, :])[0])
        if self.evaluation.classes > 2:
            return max(range(len(z)), key=lambda k: (z[k], -k))
        margin = float(z[-1] - z[0]) if len(z) == 2 else float(z[0])
        if isinstance(self.loss, OneHiddenLayer):
            score = math.tanh(margin / 2.0)
        else:
            step = w if len(z) == 1 else w[w.size // 2 :] - w[: w.size // 2]
            largest = math.hypot(*step) * self.evaluation.record_bound
            score = margin / largest if largest > 0.0 else 0.0
        second = margin > 0 if len(z) == 2 else margin >= 0
        half = self.evaluation.bins // 2
        # Bins of one side end at 1/4, 1/8, ..., the last of them begins at 0.
        beyond = sum(abs(score) > 0.5 ** (2 + at) for at in range(half - 1))
        return half + beyond if second else half - 1 - beyond
