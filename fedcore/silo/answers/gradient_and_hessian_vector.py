"""The answer `gradient-and-hessian-vector`: gradients of the records' quadratic models at a displacement v.

Each record's gradient is restricted to the coordinates of a mask, and clipped by itself to the phase's `clip`.
Huo et al., Algorithm 2, line 6, with the mask before the sum (spec dp-fcrn 11.2). For a linear predictor a record's
part is (l'(z) + l''(z) <x, v>) times the masked x. No Hessian is formed, and clipping shortens one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Self

import numpy as np

from fedcore.arrays import Matrix, Vector
from fedcore.losses import DrawnConvolution, Loss
from fedcore.models import Linear, Objective, model_of
from fedcore.models.linear import weighted_sum
from fedcore.planning.phase import Phase
from fedcore.planning.problem import Problem
from fedcore.planning.questions.question import QuadraticModelQuestion
from fedcore.silo.answers.answer import Draw, Shard, Sums
from fedcore.silo.answers.gradient import Gradient, reach_of, within


class _Frame(NamedTuple):
    """Values that all answers of a round share. `key`: their shard, model and mask. `rows` (n, k): masked records."""

    key: tuple[int, bytes, bytes]
    rows: Matrix
    residuals: Vector
    curvatures: Vector
    bounds: Vector


@dataclass
class GradientAndHessianVector:
    """Sums of clipped gradients of quadratic models. `reach`: largest norm of a model that is computed with."""

    loss: Loss
    reach: float
    _frame: _Frame | None = field(default=None, repr=False)

    name: ClassVar[str] = QuadraticModelQuestion.kind
    samples: ClassVar[bool] = True
    weighs: ClassVar[bool] = True

    @classmethod
    def misfit(cls, problem: Problem, loss: Objective | None, n: int, features: int) -> str | None:
        if isinstance(loss, DrawnConvolution) or (loss is not None and not isinstance(model_of(loss), Linear)):
            return "Hessians are those of a linear model with a loss that is not smoothed at drawn points"
        return Gradient.misfit(problem, loss, n, features)

    @classmethod
    def scale(cls, problem: Problem, *arrays: Vector) -> float:
        return 1.0

    @classmethod
    def half_diameter(cls, problem: Problem, phase: Phase) -> float:
        return phase.question.clip

    @classmethod
    def largest_norm(cls, problem: Problem, phase: Phase) -> float:
        return phase.question.clip

    @classmethod
    def of(cls, problem: Problem, loss: Objective | None, X: Matrix, y: Vector, record_bound: float) -> Self:
        model = None if loss is None else model_of(loss)
        if not isinstance(model, Linear):
            raise ValueError("there is no loss of a linear predictor to take Hessians of")
        return cls(model.loss, reach_of(problem))

    @classmethod
    def batched(cls, parts: Sequence[tuple[Self, Shard]]) -> Sums | None:
        return None

    def sum(self, phase: Phase, shard: Shard, chosen: np.ndarray | None, draw: Draw, *arrays: Vector) -> Vector:
        """`arrays`: the model (d,), the mask of 0 and 1 (d,), and the displacement in its k coordinates (k,)."""
        w, mask, v = within(arrays[0], self.reach), arrays[1], within(arrays[2], self.reach)
        frame = self._about(w, mask, shard, phase.question.clip)
        bounds, weights = frame.bounds, shard.weights
        if chosen is not None:
            # Records that are not chosen stay in their places, clipped to zero (`Gradient.clipped_sum`).
            rows = shard.rows(chosen)
            bounds = np.zeros_like(frame.bounds)
            bounds[rows] = frame.bounds[rows]

        def of_block(_: Shard, at: slice) -> Vector:
            rows, most = frame.rows[at], bounds[at]
            t = frame.curvatures[at] * (rows @ v)
            t += frame.residuals[at]
            np.minimum(t, most, out=t)
            np.maximum(t, -most, out=t)
            if weights is not None:
                t *= weights[at]
            return weighted_sum(t, rows)

        with np.errstate(all="ignore"):
            return shard.summed(of_block)

    def _about(self, w: Vector, mask: Vector, shard: Shard, clip: float) -> _Frame:
        """The frame of a round, computed once: all its answers have one model and one mask."""
        key = (shard.at.start, w.tobytes(), mask.tobytes())
        if self._frame is None or self._frame.key != key:
            columns = mask > 0
            rows = shard.X if columns.all() else shard.X.compress(columns, axis=1)  # ten times faster than an index
            with np.errstate(all="ignore"):
                z = shard.predicted(w)
                r, c = self.loss.residual(z, shard.y), self.loss.curvature(z, shard.y)
            self._frame = _Frame(key, rows, r, c, _bounds(rows, clip))
        return self._frame


def _bounds(rows: Matrix, clip: float) -> Vector:
    """Largest |factor| of each row for a part of norm at most `clip` (n,), as `residual_bounds`, but for every round.

    One pass, whatever the records. A norm below 1e-145 counts as 1e-145, which shortens only negligible parts; one
    whose square overflows counts as infinite. The sum of k squares has a relative rounding error below (k + 2) 2^-53.
    """
    slack = 2.0**-50 + (rows.shape[1] + 2) * 2.0**-53
    with np.errstate(over="ignore"):
        squares = np.einsum("ij,ij->i", rows, rows)
    return np.asarray(clip / np.sqrt(squares + 1e-290) * (1.0 - slack))
