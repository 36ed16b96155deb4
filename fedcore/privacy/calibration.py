"""How much noise a target needs: the exact Gaussian formula, or the constants that the papers print.

All standard deviations are of the *mean* over the records of one answer, per coordinate, in units of loss per weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fedcore.errors import InputError
from fedcore.privacy.claims import PaperFormula, Question
from fedcore.privacy.events import Mechanism, gaussian_delta, mean_sensitivity
from fedcore.privacy.gaussian import mu_of
from fedcore.privacy.papers import printed

Schedule = Literal["multi-pass", "one-pass"]


def paper_formula(schedule: Schedule, clip: float, batch: int, rounds: int, delta: float) -> PaperFormula:
    """The printed noise for `rounds` answers over the same `batch` records (multi-pass), or one over each (one-pass).

    multi-pass: `gao-2024` of the registry `papers`, full batches (n is the records of the phase, R all its rounds).
    one-pass: `lowy-2023-one-pass`.
    """
    if schedule == "one-pass":
        return printed("lowy-2023-one-pass", Question(batch, rounds, delta, batch, clip, "once"))
    return printed("gao-2024", Question(batch, rounds, delta, batch, clip))


@dataclass(frozen=True)
class Budget:
    """The target of every silo: (epsilon, delta) for the whole run, and how noise is found for it.

    epsilon None: no noise at all (`trust: none`). fixed_delta None: 1/n^2 with each silo's own n. `mechanism`: of the
    noise, which all silos of a run share.
    """

    epsilon: float | None
    fixed_delta: float | None = None
    calibration: Literal["exact", "paper"] = "exact"
    mechanism: Mechanism = "gaussian"

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
        mu = mu_of(self.epsilon, gaussian_delta(delta, self.mechanism))
        return mean_sensitivity(clip, batch, self.mechanism) * math.sqrt(answers) / mu
