"""Delta of a composition whose losses were tilted, near the epsilon for which the tilt was chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedcore.arrays import Vector

ROUNDING = 1e-6
"""Relative allowance on delta for the rounding of the transform; 1e5 answers lose about 1e-11."""


@dataclass(frozen=True)
class Composed:
    """Tilted loss distribution of a composition, and its delta near the epsilon for which it was made."""

    step: float
    start: float
    tilt: float
    log_scale: float
    tilted: Vector
    extra: float
    noise: float

    def delta(self, epsilon: float) -> float:
        """An upper bound on delta at `epsilon`."""
        total = self._sum(epsilon)
        log_total = self.log_scale - self.tilt * epsilon + math.log(total) if total > 0 else -math.inf
        return math.exp(min(log_total, 0.0)) * (1 + ROUNDING) + self.extra

    def reliable(self, epsilon: float) -> bool:
        """True if `ROUNDING` covers the transform's rounding at `epsilon`, which holds near the tilted mass."""
        return self._rounding() <= ROUNDING * self._sum(epsilon)

    def _rounding(self) -> float:
        """Largest error of a sum in `delta` by the transform's rounding.

        The sum has weights w(x) = exp(-tilt x) (1 - exp(-x)). Its error is at most `noise` ||w|| by Cauchy and Schwarz.
        On the grid ||w||^2 is at most max w (max w + integral of w / step).
        """
        highest = math.exp(log_highest(self.tilt))
        return self.noise * math.sqrt(highest * (highest + 1 / (self.step * self.tilt * (1 + self.tilt))))

    def curve(self) -> tuple[Vector, Vector]:
        """Upper bounds on delta (1 where they are not reliable) at the multiples of the step in the window.

        Between two multiples delta is linear in exp(epsilon). Sums as in `_sum`, from the top down, by a recurrence of
        positive terms: with w(j) = exp(-tilt j h) (1 - exp(-j h)),

            w(j + 1) = exp(-tilt h) (exp(-h) w(j) + exp(-tilt j h) (1 - exp(-h))).
        """
        from scipy.signal import lfilter  # 0.3 s of imports, for which plans without samples have no use

        decay, fall = math.exp(-self.tilt * self.step), -math.expm1(-self.step)
        ahead = lfilter([0.0, decay], [1.0, -decay], self.tilted[::-1])
        sums = lfilter([fall], [1.0, -decay * (1.0 - fall)], ahead)[::-1]
        epsilons = self.start + self.step * np.arange(len(sums), dtype=np.float64)
        with np.errstate(divide="ignore"):
            logs = np.minimum(self.log_scale - self.tilt * epsilons + np.log(sums), 0.0)
        reliable = self._rounding() <= ROUNDING * sums
        bounds: Vector = np.where(reliable, np.exp(logs) * (1 + ROUNDING) + self.extra, 1.0)
        return epsilons, bounds

    def _sum(self, epsilon: float) -> float:
        ahead = self.start - epsilon + self.step * np.arange(len(self.tilted))
        ahead, mass = ahead[ahead > 0], self.tilted[ahead > 0]
        return float(np.sum(mass * np.exp(-self.tilt * ahead) * -np.expm1(-ahead)))


def log_highest(tilt: float) -> float:
    """Logarithm of the largest exp(-tilt x) (1 - exp(-x)) over x > 0.

    It is the ratio of delta to exp(tilt (loss - epsilon)).
    It turns Chernoff's bound on the probability of a loss above epsilon into one on delta (Canonne, Kamath, Steinke
    2020, Proposition 12).
    """
    return -tilt * math.log1p(1 / tilt) - math.log1p(tilt)
