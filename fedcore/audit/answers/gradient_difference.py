"""Clipped differences of single records' gradients, computed one by one without the code under test."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from fedcore.arrays import Matrix, Vector
from fedcore.audit.answers.answer import Sum
from fedcore.audit.answers.gradient import AuditedGradient
from fedcore.models import Objective
from fedcore.planning.phase import Phase
from fedcore.planning.plan import Plan
from fedcore.planning.questions.question import DifferenceQuestion
from fedcore.silo.answers.answer import Draw, Shard
from fedcore.silo.answers.gradient_difference import GradientDifference

LONGEST = 1e3
"""Norm of a loud record where no difference is as long as wanted."""
STEP = 0.3
"""Length of the first question's step, in units of the first model's distance to the domain's edge.

At common diameters the length is far from 1, so that noise which is not scaled by it is found."""


class WatchedGradientDifference(GradientDifference):
    notes: list[Sum]

    def sum(self, phase: Phase, shard: Shard, chosen: np.ndarray | None, draw: Draw, *arrays: Vector) -> Vector:
        self.notes.append(Sum(np.concatenate(arrays), chosen, None))
        return super().sum(phase, shard, chosen, draw, *arrays)


class AuditedGradientDifference(AuditedGradient):
    """A record adds its gradient at one model minus that at another, clipped to C_2 times their distance.

    The vector of a sum is both models, one after the other (2 d,).
    """

    watched: ClassVar[type[Any]] = WatchedGradientDifference

    def __init__(self, plan: Plan, loss: Objective | None) -> None:
        super().__init__(plan, loss)
        kinds = [kind for phase in plan.phases for kind in phase.kinds if kind.question.kind == DifferenceQuestion.kind]
        self.slope = kinds[0].question.clip

    @cached_property
    def about(self) -> Vector:
        """The first model, and one a step away in a direction on no axis that differs between classes."""
        rest = 0.5 * self.problem.objective.diameter - float(np.linalg.norm(self.start))
        away = _direction(self.start.size) * (STEP * rest)
        return np.concatenate([self.start, self.start + away])

    @cached_property
    def allowed(self) -> float:  # type: ignore[override]
        return self.loud(self.slope)

    @property
    def no_canaries(self) -> str | None:
        return "a canary's difference depends on both models, and is loud for few pairs of them"

    def parts(self, w: Vector, X: Matrix, y: Vector, shifts: Vector | None = None) -> Matrix:
        after, before = np.split(w, 2)
        change = self.changes(w, X, y)
        norms = np.sqrt(np.einsum("ij,ij->i", change, change))
        bound = self.slope * float(np.linalg.norm(after - before))
        return change * (bound / np.maximum(norms, max(bound, 1e-300)))[:, None]

    def changes(self, w: Vector, X: Matrix, y: Vector) -> Matrix:
        """Unclipped differences of gradients (n, d)."""
        after, before = np.split(w, 2)
        return self.gradients(after, X, y) - self.gradients(before, X, y)

    def loud(self, norm: float) -> float:
        """Accurate to a factor of two, for one direction; a difference's growth depends on the loss."""
        x, y = _direction(self.features)[None], np.ones(1)
        unit = float(np.linalg.norm(np.subtract(*np.split(self.about, 2))))
        for length in 2.0 ** np.arange(-10, 60):
            if float(np.linalg.norm(self.changes(self.about, length * x, y))) >= norm * unit:
                return float(length)
        return LONGEST

    def farthest(self, x: Vector, y: float) -> tuple[Vector, float]:
        """The record's mirror image, with the same predictors at both models.

        Its change of residuals is therefore the same.
        A convex loss's differences lie in one half space, where no other is farther away. If the predictors determine a
        record completely, there is no mirror image: the result is a record without features.
        """
        rows = np.concatenate([w[: w.size // self.features * self.features] for w in np.split(self.about, 2)])
        seen, sizes, _ = np.linalg.svd(rows.reshape(-1, self.features).T, full_matrices=False)
        seen = seen[:, sizes > 1e-9 * sizes.max()]
        mirrored = 2.0 * seen @ (seen.T @ x) - x
        return (mirrored if seen.shape[1] < self.features else 0.0 * x), y


def _direction(dim: int) -> Vector:
    drawn = np.random.default_rng(1).standard_normal(dim)
    return np.asarray(drawn / np.linalg.norm(drawn))
