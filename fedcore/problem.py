"""The public facts that a plan is made from: sizes, constants, participation and the privacy budget."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedcore.errors import InputError
from fedcore.privacy.calibration import Budget


@dataclass(frozen=True)
class SiloFacts:
    """What everybody may know of a silo: its name and its number of records."""

    name: str
    n: int


@dataclass(frozen=True)
class Problem:
    """Everything that planning may look at; nothing here depends on what a record says.

    `clip`: bound C on one record's gradient, which is also the L of the schedules. `smoothness`: beta of the
    per-record loss, infinite if it has kinks. `diameter`: D, of the ball around 0 that models stay in.
    `participants`: M silos in a round. `drawn_points`: gradients are taken at points that are drawn anew for each
    record and round (Algorithm 7 of Gao et al.), so they vary where all records take part, too. `ridge`: weight of
    (ridge/2)|w|^2 in the objective, over all weights, a bias included; its gradient is added after noise, by the
    server or, with local steps, the silo, so it needs no clipping.
    """

    silos: tuple[SiloFacts, ...]
    dim: int
    clip: float
    smoothness: float
    diameter: float
    participants: int
    budget: Budget
    drawn_points: bool = False
    ridge: float = 0.0

    @property
    def n(self) -> int:
        """Records of the smallest silo: the n of the papers' schedules, which assume equal silos."""
        return min(silo.n for silo in self.silos)

    def smoothness_for(self, method: str) -> float:
        """beta of the objective, ridge included, for the schedule of `method`. Raises InputError if there is none."""
        if math.isfinite(self.smoothness):
            return self.smoothness + self.ridge
        raise InputError(
            f"{method} needs a smooth loss, and this problem's smoothness is infinite: use a subgradient method, or a "
            "smoothed loss (Moreau, Convolution) with its constant"
        )

    @property
    def lipschitz(self) -> float:
        """Bound on the norm of the objective's gradient over W: clip + ridge D / 2. Silos clip at `clip` alone."""
        return self.clip + self.ridge * self.diameter / 2.0

    @property
    def n_silos(self) -> int:
        return len(self.silos)

    @property
    def delta(self) -> float:
        """Largest delta of any silo: the delta of the papers' schedules."""
        return max(self.budget.delta(silo.n) for silo in self.silos)
