"""What a silo keeps of a run that it agreed to: its records in the run's order, and the part of one privacy event."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcore.accounting.events import ROUNDING, GaussianRelease
from fedcore.algorithms import Agreed
from fedcore.arrays import Vector
from fedcore.losses import DrawnConvolution
from fedcore.mechanisms.grid import Grid
from fedcore.models import Model
from fedcore.models.linear import clipped_gradient_sum
from fedcore.planning.plan import Plan


@dataclass(frozen=True)
class Approved:
    """A run that this silo agreed to, with its records in the order of the run's split and what clips each of them.

    `model`: None where no gradient is asked for. `drawn`: a loss that is smoothed at drawn points, which need `norms`
    (n,) of the records; else None, both.
    """

    plan: Plan
    method: Agreed
    model: Model | None
    key: bytes
    X: np.ndarray
    y: np.ndarray
    bounds: np.ndarray
    drawn: DrawnConvolution | None
    norms: np.ndarray | None
    record_bound: float

    def clipped_sum(
        self, w: Vector, piece: Piece, chosen: np.ndarray | None = None, shifts: Vector | None = None
    ) -> Vector:
        """Clipped gradients summed over a piece (d,), or over the records at its places `chosen`.

        `shifts` (records of the piece,): of the predictors, at drawn points. A record that is not chosen is clipped to
        nothing, in its place: without it the others would stand elsewhere in the product, which rounds a row by its
        place, and at a kink of the loss the last bit of a predictor decides its residual. So one record more or less in
        a sample would move the gradients of others too, which the accountant does not allow for. Only where all of
        this together stays within the slack of the sensitivity are the chosen records taken out and computed alone.
        """
        model, bounds = self._asked_model, piece.bounds
        fixed = piece.event.sampling == "without-replacement"
        if chosen is not None and shifts is None and fixed and self._steady(w, len(chosen)):
            X, y = piece.X.take(chosen, axis=0), piece.y.take(chosen)
            return model.clipped_gradient_sum(w, X, y, bounds.take(chosen))
        if chosen is not None:
            bounds = np.zeros_like(piece.bounds)
            bounds[chosen] = piece.bounds[chosen]
        if self.drawn is not None:
            return clipped_gradient_sum(self.drawn, w, piece.X, piece.y, bounds, shifts)
        return model.clipped_gradient_sum(w, piece.X, piece.y, bounds)

    @property
    def _asked_model(self) -> Model:
        """Raises ValueError in a run of statistics."""
        if self.model is None:
            raise ValueError("there is no model to take gradients of")
        return self.model

    def _steady(self, w: Vector, records: int) -> bool:
        """Whether places in the product matter to a sum over a sample by less than a tenth of the charged slack.

        The slack is `ROUNDING` of 2 clip. Decided from w and public numbers only. Samples of a random size are never
        taken out: the time would tell their size.
        """
        moved = records * self._asked_model.rounding(w, self.record_bound)
        return 0.0 <= moved <= 0.2 * ROUNDING * self.plan.problem.clip


@dataclass
class Piece:
    """Records of one privacy event, as views into the approved run. `count`: what sums are divided by, public."""

    event: GaussianRelease
    X: np.ndarray
    y: np.ndarray
    bounds: np.ndarray
    norms: np.ndarray | None
    count: float
    noise: float  # standard deviation on the sum
    grid: Grid | None  # where a guarded silo's sums lie
