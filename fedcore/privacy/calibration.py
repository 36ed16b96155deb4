"""How much noise a target needs: the exact Gaussian formula, or the constants that the papers print.

All standard deviations are of the *mean* over the records of one answer, per coordinate, in units of loss per weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fedcore.errors import InputError
from fedcore.privacy.events import mean_sensitivity
from fedcore.privacy.gaussian import epsilon_of, mu_of

Schedule = Literal["multi-pass", "one-pass"]


@dataclass(frozen=True)
class PaperFormula:
    """A printed formula sigma = factor / epsilon, and the largest epsilon for which it was stated."""

    factor: float
    limit: float
    source: str

    def sigma(self, epsilon: float) -> float:
        if not 0 < epsilon <= self.limit:
            raise InputError(
                f"privacy.epsilon = {epsilon:g} is outside the range of {self.source}: "
                f"it is stated for 0 < epsilon <= {self.limit:.6g}; use privacy.calibration = exact"
            )
        return self.factor / epsilon

    def epsilon(self, sigma: float) -> float:
        """What the formula would claim for this sigma, whether or not it is within its stated range."""
        return self.factor / sigma if sigma > 0 else math.inf


def paper_formula(schedule: Schedule, clip: float, batch: int, rounds: int, delta: float) -> PaperFormula:
    """The printed noise for `rounds` answers over the same `batch` records (multi-pass), or one over each (one-pass).

    multi-pass: sigma^2 = 256 L^2 R ln(2.5 R / delta) ln(2 / delta) / (n eps)^2, 0 < eps <= 2 ln(2/delta), and, for the
    proof's amplification step, K = n >= eps n / (4 sqrt(2 R ln(2/delta))).
    Source: Gao, Lowy, Zhou, Wright 2024, Algorithm 1 (n is the records of the phase, R all its rounds).
    one-pass: sigma^2 = 32 L^2 ln(1.25/delta) / (K eps)^2, 0 < eps <= 8 ln(1/delta).
    Source: Lowy and Razaviyayn 2023, one-pass accelerated noisy MB-SGD, with the 32 of the statement, not the 8 of its
    proof (spec isrl-dp-fl, E14).
    """
    if schedule == "one-pass":
        return PaperFormula(
            clip * math.sqrt(32 * math.log(1.25 / delta)) / batch,
            8 * math.log(1 / delta),
            "the one-pass formula of Lowy and Razaviyayn 2023",
        )
    variance = 256 * rounds * math.log(2.5 * rounds / delta) * math.log(2 / delta)
    limit = min(2 * math.log(2 / delta), 4 * math.sqrt(2 * rounds * math.log(2 / delta)))
    return PaperFormula(
        clip * math.sqrt(variance) / batch, limit, f"the multi-pass formula of Gao et al. 2024 at {rounds} rounds"
    )


@dataclass(frozen=True)
class Budget:
    """The target of every silo: (epsilon, delta) for the whole run, and how noise is found for it.

    epsilon None: no noise at all (`trust: none`). fixed_delta None: 1/n^2 with each silo's own n.
    """

    epsilon: float | None
    fixed_delta: float | None = None
    calibration: Literal["exact", "paper"] = "exact"

    @property
    def private(self) -> bool:
        return self.epsilon is not None

    def delta(self, n: int) -> float:
        """delta of a silo with n records."""
        return self.fixed_delta if self.fixed_delta is not None else 1.0 / n**2

    def check(self, silo: str, n: int) -> None:
        """Raises InputError unless this silo's delta is below 1/n, as any useful guarantee needs."""
        if self.private and not self.delta(n) < 1.0 / n:
            raise InputError(
                f"privacy.delta = {self.delta(n):g} must be below 1/n = {1 / n:g} at silo {silo} (n = {n} records): "
                "above it, publishing one record in full would count as private"
            )

    def sigma(self, schedule: Schedule, clip: float, batch: int, rounds: int, n: int) -> float:
        """Noise for `rounds` answers about the same `batch` of a silo's n records (one-pass: one answer per batch).

        exact: sigma = sensitivity sqrt(rounds) / mu*, mu* the largest mu that is (epsilon, delta)-DP; any epsilon > 0.
        paper: `paper_formula`. Returns 0.0 for trust none. Raises InputError outside the paper's range.
        """
        if self.epsilon is None:
            return 0.0
        delta = self.delta(n)
        if self.calibration == "paper":
            return paper_formula(schedule, clip, batch, rounds, delta).sigma(self.epsilon)
        answers = rounds if schedule == "multi-pass" else 1
        return mean_sensitivity(clip, batch) * math.sqrt(answers) / mu_of(self.epsilon, delta)

    def accounted(self, mu_squared: float, n: int) -> float:
        """Smallest epsilon that a silo of n records spends on events whose squared mu add up to `mu_squared`."""
        return epsilon_of(math.sqrt(mu_squared), self.delta(n))
