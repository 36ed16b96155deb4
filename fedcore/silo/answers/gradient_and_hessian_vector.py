"""The answer `gradient-and-hessian-vector`: the gradient of each record's quadratic model at a displacement from the
model, in the coordinates that are kept, clipped by itself to the phase's `clip`.

Huo et al., Algorithm 2, line 6, with the mask before the sum (spec dp-fcrn 11.2). For a linear predictor a record's
part is (l'(z) + l''(z) <x, v>) times what is kept of x: no Hessian is formed, and clipping shortens a number.
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
    """What all answers of a round have in common. `key`: what they are about. `rows` (n, k): what
    is kept of records."""

    key: tuple[int, bytes, bytes]
    rows: Matrix
    residuals: Vector
    curvatures: Vector
    bounds: Vector


@dataclass
class GradientAndHessianVector:
    """`reach`: largest norm of a model that is computed with."""

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
    def scale(cls, problem: Problem, *asked: Vector) -> float:
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

    def sum(self, phase: Phase, shard: Shard, chosen: np.ndarray | None, draw: Draw, *asked: Vector) -> Vector:
        """`asked`: the model (d,), the mask of 0 and 1 (d,), and the displacement among what it keeps (k,)."""
        w, mask, v = within(asked[0], self.reach), asked[1], within(asked[2], self.reach)
        frame = self._about(w, mask, shard, phase.question.clip)
        bounds, weights = frame.bounds, shard.weights
        if chosen is not None:
            # In their places, and clipped to nothing: `Gradient.clipped_sum` says why.
            rows = shard.rows(chosen)
            bounds = np.zeros_like(frame.bounds)
            bounds[rows] = frame.bounds[rows]

        def of_block(_: Shard, at: slice) -> Vector:
            kept, most = frame.rows[at], bounds[at]
            t = frame.curvatures[at] * (kept @ v)
            t += frame.residuals[at]
            np.minimum(t, most, out=t)
            np.maximum(t, -most, out=t)
            if weights is not None:
                t *= weights[at]
            return weighted_sum(t, kept)

        with np.errstate(all="ignore"):
            return shard.summed(of_block)

    def _about(self, w: Vector, mask: Vector, shard: Shard, clip: float) -> _Frame:
        """Made once for the answers of a round, which are about one model in the same coordinates."""
        key = (shard.at.start, w.tobytes(), mask.tobytes())
        if self._frame is None or self._frame.key != key:
            kept = mask > 0
            rows = shard.X if kept.all() else shard.X.compress(kept, axis=1)  # ten times faster than an index
            with np.errstate(all="ignore"):
                z = shard.predicted(w)
                r, c = self.loss.residual(z, shard.y), self.loss.curvature(z, shard.y)
            self._frame = _Frame(key, rows, r, c, _bounds(rows, clip))
        return self._frame


def _bounds(rows: Matrix, clip: float) -> Vector:
    """Largest |factor| of each row for a part of norm at most `clip` (n,), as `residual_bounds`, but made every round.

    In one pass, whatever the records: a norm below 1e-145 counts as that, which shortens what is next to nothing, and
    one whose square overflows as infinite. The sum of k squares is rounded by less than (k + 2) 2^-53 of itself.
    """
    slack = 2.0**-50 + (rows.shape[1] + 2) * 2.0**-53
    with np.errstate(over="ignore"):
        squares = np.einsum("ij,ij->i", rows, rows)
    return np.asarray(clip / np.sqrt(squares + 1e-290) * (1.0 - slack))
