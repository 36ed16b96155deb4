"""The answer `gradient-difference`: differences of the records' gradients at two models.

Each record's difference is clipped by itself to the phase's `clip` times the length of the step between the models.
Murata and Suzuki 2023, Algorithm 1 (spec diff2, 3.2). Bound, sensitivity and noise are in units of that length, which
is public. A step of length zero is answered with zeros, and charged like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from fedcore.arrays import Matrix, Vector
from fedcore.losses import DrawnConvolution
from fedcore.models import Model, Objective, model_of
from fedcore.planning.phase import Phase
from fedcore.planning.problem import Problem
from fedcore.planning.questions.question import DifferenceQuestion
from fedcore.silo.answers.answer import Draw, Shard, Sums
from fedcore.silo.answers.gradient import Gradient, reach_of, within


@dataclass(frozen=True)
class GradientDifference:
    """Sums of clipped differences. `reach`: largest norm of a model that is computed with."""

    model: Model
    reach: float

    name: ClassVar[str] = DifferenceQuestion.kind
    samples: ClassVar[bool] = True
    weighs: ClassVar[bool] = True

    @classmethod
    def misfit(cls, problem: Problem, loss: Objective | None, n: int, features: int) -> str | None:
        if isinstance(loss, DrawnConvolution):
            return "a loss that is smoothed at drawn points has no differences of gradients at the same points"
        return Gradient.misfit(problem, loss, n, features)

    @classmethod
    def scale(cls, problem: Problem, *arrays: Vector) -> float:
        """|w - before|, the unit of the clipping bound."""
        return step_of(reach_of(problem), *arrays)[2]

    @classmethod
    def half_diameter(cls, problem: Problem, phase: Phase) -> float:
        return phase.question.clip

    @classmethod
    def largest_norm(cls, problem: Problem, phase: Phase) -> float:
        return phase.question.clip

    @classmethod
    def of(cls, problem: Problem, loss: Objective | None, X: Matrix, y: Vector, record_bound: float) -> Self:
        if loss is None:
            raise ValueError("there is no loss to take gradients of")
        return cls(model_of(loss), reach_of(problem))

    @classmethod
    def batched(cls, parts: Sequence[tuple[Self, Shard]]) -> Sums | None:
        return None

    def sum(self, phase: Phase, shard: Shard, chosen: np.ndarray | None, draw: Draw, *arrays: Vector) -> Vector:
        """The sum; records that are not `chosen` stay in their places at weight 0 (`Gradient.clipped_sum`)."""
        w, before, length = step_of(self.reach, *arrays)
        bound = phase.question.clip * length
        if chosen is not None:
            counted = np.zeros(len(shard.y))
            rows = shard.rows(chosen)
            counted[rows] = 1.0 if shard.weights is None else shard.weights[rows]
            shard = shard.of_rows(shard.X, shard.y, counted)
        return shard.summed(
            lambda part, _: self.model.clipped_difference_sum(w, before, part.X, part.y, bound, part.weights)
        )


def step_of(reach: float, w: Vector, before: Vector) -> tuple[Vector, Vector, float]:
    """Both models within `reach`, and the length of their step: one number for clipping, charge and noise."""
    w, before = within(w, reach), within(before, reach)
    return w, before, float(np.linalg.norm(w - before))
