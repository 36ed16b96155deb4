"""Clipped gradients of single records' quadratic models, worked out apart from the code under test, one by one."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from fedcore.arrays import Matrix, Vector
from fedcore.audit.answers.answer import Sum
from fedcore.audit.answers.gradient_and_hessian import AuditedGradientAndHessian
from fedcore.models import Objective
from fedcore.planning.phase import Phase
from fedcore.planning.plan import Plan
from fedcore.planning.questions.question import QuadraticModelQuestion
from fedcore.silo.answers.answer import Draw, Shard
from fedcore.silo.answers.gradient_and_hessian_vector import GradientAndHessianVector


class WatchedGradientAndHessianVector(GradientAndHessianVector):
    notes: list[Sum]

    def sum(self, phase: Phase, shard: Shard, chosen: np.ndarray | None, draw: Draw, *asked: Vector) -> Vector:
        self.notes.append(Sum(np.concatenate(asked), chosen, None))
        return super().sum(phase, shard, chosen, draw, *asked)


class AuditedGradientAndHessianVector(AuditedGradientAndHessian):
    """A record adds what is kept of its gradient and of its Hessian times a displacement, clipped together.

    What its sums are about are the model, the mask, and the displacement among what it keeps, one after the other
    (2 d + k,).
    """

    watched: ClassVar[type[Any]] = WatchedGradientAndHessianVector

    def __init__(self, plan: Plan, loss: Objective | None) -> None:
        super().__init__(plan, loss)
        phases = [
            kind for phase in plan.phases for kind in phase.kinds if kind.question.kind == QuadraticModelQuestion.kind
        ]
        self.bound = phases[0].question.clip

    def parts(self, w: Vector, X: Matrix, y: Vector, shifts: Vector | None = None) -> Matrix:
        d = X.shape[1]
        model, kept, displacement = w[:d], w[d : 2 * d] > 0, np.zeros(d)
        displacement[kept] = w[2 * d :]
        whole = self.gradients(model, X, y) + self.hessians(model, X, y) @ displacement
        parts = whole[:, kept]
        norms = np.sqrt(np.einsum("ij,ij->i", parts, parts))
        return np.asarray(parts * (self.bound / np.maximum(norms, self.bound))[:, None])
