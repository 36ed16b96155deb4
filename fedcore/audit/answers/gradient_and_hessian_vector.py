"""Clipped gradients of records' quadratic models, computed one by one without the code under test."""

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

    def sum(self, phase: Phase, shard: Shard, chosen: np.ndarray | None, draw: Draw, *arrays: Vector) -> Vector:
        self.notes.append(Sum(np.concatenate(arrays), chosen, None))
        return super().sum(phase, shard, chosen, draw, *arrays)


class AuditedGradientAndHessianVector(AuditedGradientAndHessian):
    """A record adds the chosen coordinates of its gradient plus its Hessian times a displacement, clipped.

    The vector of a sum is the model, the mask, and the displacement's chosen coordinates, one after the other (2 d +
    k,).
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
        model, chosen, displacement = w[:d], w[d : 2 * d] > 0, np.zeros(d)
        displacement[chosen] = w[2 * d :]
        whole = self.gradients(model, X, y) + self.hessians(model, X, y) @ displacement
        parts = whole[:, chosen]
        norms = np.sqrt(np.einsum("ij,ij->i", parts, parts))
        return np.asarray(parts * (self.bound / np.maximum(norms, self.bound))[:, None])
