"""What a silo keeps of a run that it agreed to: its records in the run's order, and the part of one privacy event."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcore.algorithms import Algorithm
from fedcore.losses import Loss
from fedcore.plan import Plan
from fedcore.privacy.events import GaussianRelease
from fedcore.privacy.grid_noise import Grid


@dataclass(frozen=True)
class Approved:
    """A run that this silo agreed to, with its records in the order of the run's split and what clips each of them.

    `norms` (n,): of the records, where the loss is smoothed at drawn points, which need them.
    """

    plan: Plan
    method: Algorithm
    loss: Loss
    key: bytes
    X: np.ndarray
    y: np.ndarray
    bounds: np.ndarray
    norms: np.ndarray | None


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
