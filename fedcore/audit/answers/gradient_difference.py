"""Clipped differences of single records' gradients, worked out apart from the code under test, one by one."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from fedcore.arrays import Matrix, Vector
from fedcore.audit.answers.answer import Sum
from fedcore.audit.answers.gradient import AuditedGradient
from fedcore.models import Objective
from fedcore.planning.phase import DIFFERENCE, Phase
from fedcore.planning.plan import Plan
from fedcore.silo.answers.answer import Draw, Piece
from fedcore.silo.answers.gradient_difference import GradientDifference


class WatchedGradientDifference(GradientDifference):
    notes: list[Sum]

    def sum(self, phase: Phase, piece: Piece, chosen: np.ndarray | None, draw: Draw, *asked: Vector) -> Vector:
        self.notes.append(Sum(np.concatenate(asked), chosen, None))
        return super().sum(phase, piece, chosen, draw, *asked)


class AuditedGradientDifference(AuditedGradient):
    """A record adds its gradient at one model minus that at another, clipped to C_2 times the length between.

    What its sums are about are both models, one after the other (2 d,).
    """

    watched: ClassVar[type[Any]] = WatchedGradientDifference

    def __init__(self, plan: Plan, loss: Objective | None) -> None:
        super().__init__(plan, loss)
        kinds = [kind for phase in plan.phases for kind in phase.kinds if kind.answer == DIFFERENCE]
        self.slope = kinds[0].clip

    @property
    def no_canaries(self) -> str | None:
        return "a canary's difference depends on both models, and is loud for few pairs of them"

    def parts(self, w: Vector, X: Matrix, y: Vector, shifts: Vector | None = None) -> Matrix:
        after, before = np.split(w, 2)
        change = self.gradients(after, X, y) - self.gradients(before, X, y)
        norms = np.sqrt(np.einsum("ij,ij->i", change, change))
        bound = self.slope * float(np.linalg.norm(after - before))
        return change * (bound / np.maximum(norms, max(bound, 1e-300)))[:, None]
