"""Clipped gradients and Hessians of single records, worked out apart from the code under test, one by one."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from fedcore.arrays import Matrix, Vector
from fedcore.audit.answers.answer import Sum
from fedcore.audit.answers.gradient import AuditedGradient
from fedcore.models import Objective, OwnLoss
from fedcore.planning.phase import SECOND_ORDER, Phase
from fedcore.planning.plan import Plan
from fedcore.silo.answers.answer import Draw, Piece
from fedcore.silo.answers.gradient_and_hessian import GradientAndHessian


class WatchedGradientAndHessian(GradientAndHessian):
    notes: list[Sum]

    def sum(self, phase: Phase, piece: Piece, chosen: np.ndarray | None, draw: Draw, *asked: Vector) -> Vector:
        self.notes.append(Sum(asked[0].copy(), chosen, None))
        return super().sum(phase, piece, chosen, draw, *asked)


class AuditedGradientAndHessian(AuditedGradient):
    """A record adds its gradient, clipped to norm C, and the upper triangle of its Hessian, clipped to the smoothness
    and scaled, entries off the diagonal times sqrt(2)."""

    watched: ClassVar[type[Any]] = WatchedGradientAndHessian

    def __init__(self, plan: Plan, loss: Objective | None) -> None:
        super().__init__(plan, loss)
        balances = [kind.balance for phase in plan.phases for kind in phase.kinds if kind.answer == SECOND_ORDER]
        self.scale = self.problem.clip * float(next(iter(balances), None) or 0.0) ** 0.5 / self.problem.smoothness

    @property
    def no_canaries(self) -> str | None:
        return "a canary's Hessian is never negative, so canaries on one axis do not cancel"

    def parts(self, w: Vector, X: Matrix, y: Vector, shifts: Vector | None = None) -> Matrix:
        gradients = super().parts(w, X, y, shifts)
        hessians = self.hessians(w, X, y)
        norms = np.sqrt(np.einsum("nij,nij->n", hessians, hessians))
        most = self.problem.smoothness
        hessians *= (self.scale * most / np.maximum(norms, most))[:, None, None]
        rows, columns = np.triu_indices(X.shape[1])
        weights = np.where(rows == columns, 1.0, np.sqrt(2.0))
        return np.concatenate([gradients, hessians[:, rows, columns] * weights], axis=1)

    def hessians(self, w: Vector, X: Matrix, y: Vector) -> np.ndarray:
        """Of the loss of each record at w (n, d, d), whatever their norms: by central differences of its residual."""
        if isinstance(self.loss, OwnLoss):
            raise ValueError("Hessians are those of a linear model")
        z, step = X @ w, 1e-5
        bent = (self.loss.residual(z + step, y) - self.loss.residual(z - step, y)) / (2.0 * step)
        return np.asarray(bent[:, None, None] * X[:, :, None] * X[:, None, :])
