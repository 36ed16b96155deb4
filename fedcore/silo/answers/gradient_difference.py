"""The answer `gradient-difference`: gradients of the loss at one model minus those at another, record by record, each
difference clipped by itself to the phase's `clip` times the length of the step between the two.

Murata and Suzuki 2023, Algorithm 1 (spec diff2, 3.2). Everything about it is in units of that length, which is public:
the bound, the sensitivity, the noise. A step of length zero is answered with zeros, and charged like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    """`reach`: largest norm of a model that is computed with."""

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
    def scale(cls, problem: Problem, *asked: Vector) -> float:
        """|w - before|, as the sum is clipped by it."""
        return step_of(reach_of(problem), *asked)[2]

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

    def sum(self, phase: Phase, shard: Shard, chosen: np.ndarray | None, draw: Draw, *asked: Vector) -> Vector:
        """Records that are not `chosen` are computed with and count nothing, in their places
        (`Gradient.clipped_sum`)."""
        w, before, length = step_of(self.reach, *asked)
        weights, bound = shard.weights, phase.question.clip * length
        if chosen is not None:
            counted = np.zeros(len(shard.y))
            rows = shard.rows(chosen)
            counted[rows] = 1.0 if weights is None else weights[rows]
            weights = counted
        return replace(shard, weights=weights).summed(
            lambda part, _: self.model.clipped_difference_sum(w, before, part.X, part.y, bound, part.weights)
        )


def step_of(reach: float, w: Vector, before: Vector) -> tuple[Vector, Vector, float]:
    """Both models, as they are computed with, and the length of the step between them: one number for clipping, charge
    and noise."""
    w, before = within(w, reach), within(before, reach)
    return w, before, float(np.linalg.norm(w - before))
