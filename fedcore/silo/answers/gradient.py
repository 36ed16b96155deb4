"""The answer `gradient`: gradients of the loss at a model, each clipped by itself to the problem's `clip`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedcore.accounting.rounding import OWN, ROUNDING
from fedcore.arrays import Matrix, Vector
from fedcore.losses import Convolution, DrawnConvolution
from fedcore.messages import BOUND
from fedcore.models import Model, Objective, model_of
from fedcore.models.linear import clipped_gradient_sum, row_norms
from fedcore.planning.phase import Phase
from fedcore.planning.problem import Problem
from fedcore.silo.answers.answer import Draw, Shard, Sums, weights_misfit
from fedcore.summation import BLOCK, gamma, tree_sum

MOST_NUMBERS = 2**27
"""Bound on the numbers of an array with a row per record: 2^27 are 1 GB in double precision."""
REACH = 1e6
"""Bound on the norm of a model at which answers are computed, in radii of the domain; local steps may leave it."""


@dataclass(frozen=True)
class Gradient:
    """Sums of clipped gradients.

    `bounds` (n,): clipping bound of each record's residual. `drawn`: a loss smoothed at drawn points, which need the
    records' `norms` (n,); both None for other losses. `reach`: largest norm of a model at which answers are computed.
    """

    model: Model
    bounds: Vector
    drawn: DrawnConvolution | None
    norms: Vector | None
    clip: float
    reach: float
    record_bound: float

    name: ClassVar[str] = "gradient"
    samples: ClassVar[bool] = True
    weighs: ClassVar[bool] = True

    @classmethod
    def misfit(cls, problem: Problem, loss: Objective | None, n: int, features: int) -> str | None:
        if loss is None:
            return "training has an objective, and the agreement names none"
        if (fault := weights_misfit(problem, loss, features)) is not None:
            return fault
        smoothed = loss.dim if isinstance(loss, Convolution | DrawnConvolution) else features
        if smoothed != features:
            # Its constants decide how a sample may be summed, and would be those of other records.
            return f"the loss is smoothed in {smoothed} dimensions, not in {features}"
        units = problem.objective.dim // features
        if n * units > MOST_NUMBERS:
            return f"{n} rows at {units} units are more than the {MOST_NUMBERS} numbers it computes with"
        return None

    @classmethod
    def scale(cls, problem: Problem, *arrays: Vector) -> float:
        return 1.0

    @classmethod
    def half_diameter(cls, problem: Problem, phase: Phase) -> float:
        return problem.objective.clip

    @classmethod
    def largest_norm(cls, problem: Problem, phase: Phase) -> float:
        return problem.objective.clip

    @classmethod
    def of(cls, problem: Problem, loss: Objective | None, X: Matrix, y: Vector, record_bound: float) -> Gradient:
        if loss is None:
            raise ValueError("there is no loss to take gradients of")
        model = model_of(loss)
        drawn = loss if isinstance(loss, DrawnConvolution) else None
        norms = row_norms(X) if drawn is not None else None
        reach = reach_of(problem)
        clip = problem.objective.clip
        return cls(model, model.bounds(X, y, clip), drawn, norms, clip, reach, record_bound)

    @classmethod
    def batched(cls, parts: Sequence[tuple[Gradient, Shard]]) -> Sums | None:
        answer = parts[0][0]
        if answer.drawn is not None:
            return None
        blocks = [shard.blocks for _, shard in parts]
        shards, weights = [], []
        for (each, shard), of_shard in zip(parts, blocks, strict=True):
            bounds = each.bounds[shard.at]
            shards += [(shard.X[rows], shard.y[rows], bounds[rows]) for rows in of_shard]
            weights += [] if shard.weights is None else [shard.weights[rows] for rows in of_shard]
        if weights and len(weights) < len(shards):
            return None
        sums = answer.model.clipped_gradient_sums(shards, weights or None)
        if sums is None:
            return None

        def within_reach(w: Vector) -> Matrix | None:
            if not float(w @ w) <= answer.reach**2:
                return None
            found = sums(w)
            if len(found) == len(blocks):
                return found
            each = iter(found)
            return np.array([tree_sum(of_shard, lambda _: next(each)) for of_shard in blocks])

        return within_reach

    def sum(self, phase: Phase, shard: Shard, chosen: np.ndarray | None, draw: Draw, *arrays: Vector) -> Vector:
        w = within(arrays[0], self.reach)
        shifts = None
        if self.drawn is not None and self.norms is not None:
            # Knowledge of these points reveals nothing about a record: clip, coins and noise protect it.
            shifts = self.drawn.shifts(self.norms[shard.at], draw("smoothing"))
        return self.clipped_sum(w, shard, chosen, shifts)

    def clipped_sum(
        self, w: Vector, shard: Shard, chosen: np.ndarray | None = None, shifts: Vector | None = None
    ) -> Vector:
        """Sum (d,) of clipped, weighted gradients over the shard, or over its records (persons) `chosen`.

        `shifts` (rows of the shard,): of the predictors, at drawn points.

        A record that is not chosen stays in its place, clipped to zero. Without it others would move to other places in
        the product, which rounds a row by its place. At a corner of the loss the last bit of a predictor decides its
        residual. So one record more or less would move the gradients of others, which the accountant does not allow
        for. The chosen records are taken out and computed alone only where `_steady` bounds these effects by the slack
        of the sensitivity. For the same reason a person keeps its empty places, at weight 0.
        """
        bounds = self.bounds[shard.at]
        if chosen is not None:
            rows = shard.rows(chosen)
            fixed = shard.event.sampling == "without-replacement"
            if shifts is None and fixed and self._steady(w, len(chosen), len(rows)):
                weights = None if shard.weights is None else shard.weights.take(rows)
                X, y = shard.X.take(rows, axis=0), shard.y.take(rows)
                shard, bounds = shard.of_rows(X, y, weights), bounds.take(rows)
            else:
                of_chosen = np.zeros_like(bounds)
                of_chosen[rows] = bounds[rows]
                bounds = of_chosen

        def of_block(part: Shard, at: slice) -> Vector:
            if self.drawn is None:
                return self.model.clipped_gradient_sum(w, part.X, part.y, bounds[at], part.weights)
            moved = None if shifts is None else shifts[at]
            return clipped_gradient_sum(self.drawn, w, part.X, part.y, bounds[at], moved, part.weights)

        return shard.summed(of_block)

    def _steady(self, w: Vector, records: int, rows: int) -> bool:
        """True if places in the products change a sum over a sample by less than most of the charged slack.

        The slack is `ROUNDING` of 2 clip, half of it where one record comes in. One record less moves others to other
        places. Their gradients then move by at most a fifth of the slack. The rounding of the sum changes by at most
        gamma of its length, in both sums. A person's weights add up to 1, so it counts as one record.
        Decided from w and public numbers only. Samples of a random size are never taken out: the time would show the
        size.
        """
        moved = records * self.model.rounding(w, self.record_bound)
        anew = 2.0 * records * gamma(BLOCK + OWN + rows.bit_length())
        return 0.0 <= moved <= 0.2 * ROUNDING * self.clip and anew <= 0.5 * ROUNDING


def reach_of(problem: Problem) -> float:
    """Largest norm of a model at which answers are computed."""
    return min(BOUND, REACH * problem.objective.diameter / 2)


def within(w: Vector, reach: float) -> Vector:
    """The model w, or one of norm `reach` in its place if w is longer or not finite.

    Local steps may go beyond the bounds of a query. There predictors would overflow for some records and not for
    others, and time and bits would show which. Local steps follow from noised answers alone, so this reveals nothing.
    """
    if float(w @ w) <= reach**2:
        return w
    held = np.clip(np.nan_to_num(w, posinf=BOUND, neginf=-BOUND), -BOUND, BOUND)
    held *= reach / max(reach, float(np.linalg.norm(held)))
    return np.asarray(held)
