"""Clipped gradients and Hessians of single records, computed one by one without the code under test."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from scipy.special import expit

from fedcore.arrays import Matrix, Vector
from fedcore.audit.answers.answer import Sum
from fedcore.audit.answers.gradient import AuditedGradient
from fedcore.losses import Logistic
from fedcore.models import Objective, OwnLoss
from fedcore.planning.phase import Phase
from fedcore.planning.plan import Plan
from fedcore.planning.questions.question import SecondOrderQuestion
from fedcore.silo.answers.answer import Draw, Shard
from fedcore.silo.answers.gradient_and_hessian import GradientAndHessian


class WatchedGradientAndHessian(GradientAndHessian):
    notes: list[Sum]

    def sum(self, phase: Phase, shard: Shard, chosen: np.ndarray | None, draw: Draw, *arrays: Vector) -> Vector:
        self.notes.append(Sum(arrays[0].copy(), chosen, None))
        return super().sum(phase, shard, chosen, draw, *arrays)


class AuditedGradientAndHessian(AuditedGradient):
    """A record adds its clipped gradient and the upper triangle of its clipped and scaled Hessian.

    The gradient is clipped to norm C, the Hessian to the smoothness. Entries off the diagonal are multiplied by
    sqrt(2).
    """

    watched: ClassVar[type[Any]] = WatchedGradientAndHessian

    def __init__(self, plan: Plan, loss: Objective | None) -> None:
        super().__init__(plan, loss)
        questions = [kind.question for phase in plan.phases for kind in phase.kinds]
        balances = [question.balance for question in questions if isinstance(question, SecondOrderQuestion)]
        self.scale = (
            self.problem.objective.clip
            * float(next(iter(balances), None) or 0.0) ** 0.5
            / self.problem.objective.smoothness
        )

    @property
    def no_canaries(self) -> str | None:
        return "a canary's Hessian is never negative, so canaries on one axis do not cancel"

    def parts(self, w: Vector, X: Matrix, y: Vector, shifts: Vector | None = None) -> Matrix:
        gradients = super().parts(w, X, y, shifts)
        hessians = self.hessians(w, X, y)
        norms = np.sqrt(np.einsum("nij,nij->n", hessians, hessians))
        most = self.problem.objective.smoothness
        hessians *= (self.scale * most / np.maximum(norms, most))[:, None, None]
        rows, columns = np.triu_indices(X.shape[1])
        weights = np.where(rows == columns, 1.0, np.sqrt(2.0))
        return np.concatenate([gradients, hessians[:, rows, columns] * weights], axis=1)

    def hessians(self, w: Vector, X: Matrix, y: Vector) -> np.ndarray:
        """Unclipped Hessians of each record's loss at w (n, d, d).

        Their second derivative is p (1 - p) for the logistic loss, else a central difference of residuals.
        """
        if isinstance(self.loss, OwnLoss):
            raise ValueError("Hessians are those of a linear model")
        z = X @ w
        if isinstance(self.loss, Logistic):
            bent = expit(z) * expit(-z)
        else:
            step = 1e-5 * np.maximum(1.0, np.abs(z))
            above, below = z + step, z - step  # rounded, so that they are not two steps apart
            bent = (self.loss.residual(above, y) - self.loss.residual(below, y)) / (above - below)
        return np.asarray(bent[:, None, None] * X[:, :, None] * X[:, None, :])
