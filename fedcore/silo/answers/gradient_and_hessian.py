"""The answer `gradient-and-hessian`: both of each record's loss at a model, each clipped by itself, as one vector.

Definition and sensitivity of the vector: `fedcore.planning.sensitivity.second_order`. Linear models only: there a
record's Hessian is a multiple of x x^T, and clipping shortens one number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from fedcore.arrays import Matrix, Vector
from fedcore.losses import DrawnConvolution, Loss
from fedcore.models import Linear, Objective, model_of
from fedcore.models.linear import residual_bounds, row_norms
from fedcore.planning.phase import Phase
from fedcore.planning.problem import Problem
from fedcore.planning.questions.question import SecondOrderQuestion
from fedcore.planning.sensitivity.second_order import MOST_WEIGHTS, half_diameter, largest_norm, packed, scale_of
from fedcore.silo.answers.answer import Draw, Shard, Sums
from fedcore.silo.answers.gradient import Gradient, reach_of, within


@dataclass(frozen=True)
class GradientAndHessian:
    """Sums of clipped gradients and Hessians.

    `bounds` (n,): of each record's residual. `squares` (n,): |x|^2, infinite on overflow. `reach`: largest norm of a
    model at which answers are computed.
    """

    loss: Loss
    bounds: Vector
    squares: Vector
    clip: float
    curvature: float
    reach: float

    name: ClassVar[str] = SecondOrderQuestion.kind
    samples: ClassVar[bool] = False
    weighs: ClassVar[bool] = True

    @classmethod
    def misfit(cls, problem: Problem, loss: Objective | None, n: int, features: int) -> str | None:
        if isinstance(loss, DrawnConvolution) or (loss is not None and not isinstance(model_of(loss), Linear)):
            return "Hessians are those of a linear model with a loss that is not smoothed at drawn points"
        if not 0 < problem.objective.smoothness < math.inf:
            return f"a Hessian is clipped to the objective's smoothness, and that is {problem.objective.smoothness:g}"
        if features > MOST_WEIGHTS:
            return f"its records have {features} features, and Hessians of at most {MOST_WEIGHTS} are supported"
        return Gradient.misfit(problem, loss, n, features)

    @classmethod
    def scale(cls, problem: Problem, *arrays: Vector) -> float:
        return 1.0

    @classmethod
    def half_diameter(cls, problem: Problem, phase: Phase) -> float:
        question = phase.question
        if not isinstance(question, SecondOrderQuestion):
            return math.inf
        return half_diameter(problem.objective.clip, question.balance)

    @classmethod
    def largest_norm(cls, problem: Problem, phase: Phase) -> float:
        question = phase.question
        if not isinstance(question, SecondOrderQuestion):
            return math.inf
        return largest_norm(problem.objective.clip, question.balance)

    @classmethod
    def of(cls, problem: Problem, loss: Objective | None, X: Matrix, y: Vector, record_bound: float) -> Self:
        model = None if loss is None else model_of(loss)
        if not isinstance(model, Linear):
            raise ValueError("there is no loss of a linear predictor to take Hessians of")
        with np.errstate(over="ignore"):
            squares = row_norms(X) ** 2
        bounds = residual_bounds(X, problem.objective.clip)
        return cls(model.loss, bounds, squares, problem.objective.clip, problem.objective.smoothness, reach_of(problem))

    @classmethod
    def batched(cls, parts: Sequence[tuple[Self, Shard]]) -> Sums | None:
        return None

    def sum(self, phase: Phase, shard: Shard, chosen: np.ndarray | None, draw: Draw, *arrays: Vector) -> Vector:
        question = phase.question
        if not isinstance(question, SecondOrderQuestion) or chosen is not None:
            raise ValueError("an answer of gradients and Hessians is about all records, and has a balance")
        w, scale = within(arrays[0], self.reach), scale_of(self.clip, self.curvature, question.balance)
        return shard.summed(lambda part, _: self._block_sum(w, part, scale))

    def _block_sum(self, w: Vector, shard: Shard, scale: float) -> Vector:
        X, y, bounds, squares = shard.X, shard.y, self.bounds[shard.at], self.squares[shard.at]
        with np.errstate(all="ignore"):
            z = X @ w
            r, c = self.loss.residual(z, y), self.loss.curvature(z, y)
            known = np.isfinite(r) & np.isfinite(c)
            r = np.clip(np.where(known, r, 0.0), -bounds, bounds)
            c = np.clip(np.where(known, c, 0.0), 0.0, self.curvature * (1.0 - 2.0**-40) / np.maximum(squares, 1e-300))
            if shard.weights is not None:
                r, c = r * shard.weights, c * shard.weights
            return packed(r @ X, (X * c[:, None]).T @ X, scale)
