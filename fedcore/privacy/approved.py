"""What a silo keeps of a run that it agreed to: its records in the run's order, and the part of one privacy event."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcore.algorithms import Agreed
from fedcore.arrays import Vector
from fedcore.losses import DrawnConvolution
from fedcore.models import Model
from fedcore.models.linear import clipped_gradient_sum
from fedcore.plan import Plan
from fedcore.privacy.events import GaussianRelease
from fedcore.privacy.grid_noise import Grid


@dataclass(frozen=True)
class Approved:
    """A run that this silo agreed to, with its records in the order of the run's split and what clips each of them.

    `drawn`: a loss that is smoothed at drawn points, which need `norms` (n,) of the records; else None, both.
    """

    plan: Plan
    method: Agreed
    model: Model
    key: bytes
    X: np.ndarray
    y: np.ndarray
    bounds: np.ndarray
    drawn: DrawnConvolution | None
    norms: np.ndarray | None

    def clipped_sum(self, w: Vector, X: np.ndarray, y: np.ndarray, bounds: np.ndarray, shifts: Vector | None) -> Vector:
        """Clipped gradients summed over the given records (d,); `shifts` of their predictors at drawn points."""
        if self.drawn is not None:
            return clipped_gradient_sum(self.drawn, w, X, y, bounds, shifts)
        return self.model.clipped_gradient_sum(w, X, y, bounds)


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
