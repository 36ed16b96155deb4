"""Noise for a privacy target, by the exact accountant or by the constants that the papers print.

All standard deviations are of the *mean* over the records of one answer, per coordinate, in units of loss per weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from fedcore.accounting.composition import spent
from fedcore.accounting.events import GaussianRelease, Mechanism, Sampling, gaussian_delta, mean_sensitivity
from fedcore.accounting.gaussian import mu_of
from fedcore.accounting.noise_search import least_short_noise
from fedcore.accounting.published.claims import FormulaInputs, PaperFormula
from fedcore.accounting.published.papers import published
from fedcore.accounting.shuffling import shuffled_multiplier
from fedcore.accounting.whole_silo import WholeSilo
from fedcore.directed_rounding import in_full, shown_down
from fedcore.errors import InputError

EPSILONS = (1e-12, 1e4)
"""Smallest and largest target; beyond either, accountants meet the ends of floating point."""
MULTIPLIERS = (5e-324, 1e9)
"""Smallest and largest noise that may be given; accountants report even an epsilon without any effect."""
LEAST_DELTA = 1e-250

Passes = Literal["multi-pass", "one-pass"]
Calibration = Literal["exact", "paper", "experiments"]
"""Name of the rule that turns a target into noise.

`experiments`: the formula of Lowy and Razaviyayn's experiments, which has no proof. Beyond an epsilon of about 1 it
spends more than its target (spec isrl-dp-fl, 7.5)."""


def paper_formula(
    schedule: Passes, clip: float, batch: float, rounds: int, delta: float, shard: int | None = None
) -> PaperFormula:
    """The published noise for `rounds` answers about batches of one size.

    multi-pass, all answers about the same `batch` records: `gao-2024` of the registry `papers`. There n is the records
    of the phase (`shard`; None: batch) and R all its rounds. Samples of an expected size `batch` are within its range
    while epsilon <= 4 (K/n) sqrt(2R ln(2/delta)). The other schedule, one-pass, has answers about a batch each:
    `lowy-2023-one-pass`.
    """
    if schedule == "one-pass":
        return published("lowy-2023-one-pass", FormulaInputs(int(batch), rounds, delta, batch, clip, "once"))
    n = int(batch) if shard is None else shard
    return published("gao-2024", FormulaInputs(n, rounds, delta, batch, clip, "full" if batch == n else "poisson"))


def experiments_formula(
    schedule: Passes, clip: float, batch: float, rounds: int, delta: float, shard: int | None = None
) -> PaperFormula:
    """`lowy-2023-experiments` of the registry `papers`, for the inputs of `paper_formula`: no guarantee.

    Raises InputError for a schedule of one pass, for which the formula is not stated.
    """
    if schedule == "one-pass":
        raise InputError("privacy.calibration = experiments is a formula for several passes, not for fresh blocks")
    n = int(batch) if shard is None else shard
    inputs = FormulaInputs(n, rounds, delta, batch, clip, "full" if batch == n else "poisson")
    return published("lowy-2023-experiments", inputs)


@lru_cache(maxsize=4096)
def sampled_multiplier(sampling: Sampling, rate: float, rounds: int, epsilon: float, delta: float) -> float:
    """The least sigma over sensitivity for `rounds` answers about samples, to 1e-4 from above.

    By the accountant of `composition`, under replace-one. Rounded up to 20 bits, so that silos with equal rates have
    exactly equal multipliers.
    """

    def accounted(multiplier: float) -> float:
        event = GaussianRelease(0, 1, 1.0, multiplier, rounds, sampling=sampling, rate=rate)
        return spent([event], delta)

    inputs = {"sampling": sampling, "rate": rate, "rounds": rounds, "epsilon": epsilon, "delta": delta}
    enough = math.sqrt(rounds) / mu_of(epsilon, delta)
    return least_short_noise(accounted, enough, epsilon, inputs)


@dataclass(frozen=True)
class Budget:
    """Privacy target (epsilon, delta) of every silo for the whole run, and the rule for its noise.

    `epsilon`: None with a given `multiplier`, or without noise. `fixed_delta`: None for 1/n^2 with each silo's own n.
    `mechanism`: of the noise, which all silos of a run share. `multiplier`: sigma over sensitivity, where the noise is
    given. Neither epsilon nor multiplier: no noise at all (`trust: none`).
    `whole_silo`: a second target, for all records of a silo together; `fedcore.planning.whole_silo` meets it.
    """

    epsilon: float | None
    fixed_delta: float | None = None
    calibration: Calibration = "exact"
    mechanism: Mechanism = "gaussian"
    multiplier: float | None = None
    whole_silo: WholeSilo | None = None

    def __post_init__(self) -> None:
        """Raises InputError for numbers that no target has, wherever they come from."""
        for key, value, (least, most) in (
            ("epsilon", self.epsilon, EPSILONS),
            ("noise_multiplier", self.multiplier, MULTIPLIERS),
        ):
            if value is not None and not least <= value <= most:
                raise InputError(
                    f"privacy.{key} = {in_full(value)} must lie between {in_full(least)} and {in_full(most)}"
                )
        if self.fixed_delta is not None and not LEAST_DELTA <= self.fixed_delta < 1:
            raise InputError(
                f"privacy.delta = {in_full(self.fixed_delta)} must lie between {in_full(LEAST_DELTA)} and 1"
            )
        if (whole := self.whole_silo) is None:
            return
        if not EPSILONS[0] <= whole.epsilon <= EPSILONS[1]:
            raise InputError(
                f"privacy.whole_silo.epsilon = {in_full(whole.epsilon)} must lie between {in_full(EPSILONS[0])} and "
                f"{in_full(EPSILONS[1])}"
            )
        if not LEAST_DELTA <= whole.delta < 1:
            raise InputError(
                f"privacy.whole_silo.delta = {in_full(whole.delta)} must lie between {in_full(LEAST_DELTA)} and 1"
            )
        if self.epsilon is None or self.multiplier is not None or self.calibration != "exact":
            raise InputError(
                "privacy.whole_silo needs privacy.epsilon and privacy.calibration = exact: noise that is given, "
                "printed in a paper or not there is raised for no second target"
            )

    @property
    def private(self) -> bool:
        return self.epsilon is not None or self.multiplier is not None

    @property
    def shown_calibration(self) -> str:
        """Name of the calibration: `given` for noise that the configuration names, `none` without noise."""
        if not self.private:
            return "none"
        return "given" if self.epsilon is None else self.calibration

    def aimed_at(self, epsilon: float | None) -> Budget:
        """A budget for another answer of the same run, with its own target, calibrated exactly."""
        return Budget(epsilon, self.fixed_delta, "exact", self.mechanism)

    def delta(self, n: int) -> float:
        """delta of a silo with n records."""
        return self.fixed_delta if self.fixed_delta is not None else 1.0 / n**2

    def check(self, silo: str, n: int) -> None:
        """Raises InputError unless this silo's delta is below 1/n, as any useful guarantee needs."""
        if self.private and not self.delta(n) < 1.0 / n:
            raise InputError(
                f"privacy.delta = {in_full(self.delta(n))} must be below 1/n = {shown_down(1 / n)} at silo {silo} (n "
                f"= {n} records): above it, publishing one record in full would count as private"
            )

    def sigma(
        self,
        schedule: Passes,
        clip: float,
        batch: float,
        rounds: int,
        n: int,
        shard: int | None = None,
        rate: float = 1.0,
        messages: int | None = None,
        slack: float | None = None,
    ) -> float:
        """Noise for `rounds` answers about the same `batch` of a silo's n records (one-pass: one per batch).

        rate < 1: each answer is about a Poisson sample of the `shard` (records), `batch` = rate * shard expected.
        `messages`: least size of a shuffled batch; the target then holds only against observers of shuffled batches.
        `slack`: as for `mean_sensitivity`.
        paper: `paper_formula`, which samples do not change; experiments: `experiments_formula`. exact, and errors:
        `sigma_for`.
        """
        sensitivity = mean_sensitivity(clip, batch, self.mechanism, slack)
        answers = rounds if schedule == "multi-pass" else 1
        sampling: Sampling = "full" if rate == 1 else "poisson"
        event = GaussianRelease(0, 1, sensitivity, 0.0, answers, self.mechanism, sampling=sampling, rate=rate)
        formula = experiments_formula if self.calibration == "experiments" else paper_formula
        local = self.sigma_for(event, n, lambda: formula(schedule, clip, batch, rounds, self.delta(n), shard))
        if messages is None or self.epsilon is None or self.multiplier is not None or self.calibration != "exact":
            return local
        left = gaussian_delta(self.delta(n), self.mechanism)
        return min(local, sensitivity * shuffled_multiplier(int(batch), answers, messages, self.epsilon, left))

    def sigma_for(self, event: GaussianRelease, n: int, formula: Callable[[], PaperFormula]) -> float:
        """Noise of each of the event's answers, all of a silo's n records; the event's own sigma is ignored.

        exact: sigma = sensitivity sqrt(answers) / mu*, mu* the largest mu that is (epsilon, delta)-DP; any epsilon > 0.
        exact, samples: sensitivity times `sampled_multiplier`. Other calibrations: the value of `formula`.
        Returns 0.0 without noise (trust none). Raises InputError outside the paper's range.
        """
        if self.multiplier is not None:
            return event.sensitivity * self.multiplier
        if self.epsilon is None:
            return 0.0
        if self.calibration != "exact":
            return formula().sigma(self.epsilon)
        left = gaussian_delta(self.delta(n), self.mechanism)
        if event.sampling != "full":
            return event.sensitivity * sampled_multiplier(event.sampling, event.rate, event.count, self.epsilon, left)
        return event.sensitivity * math.sqrt(event.count) / mu_of(self.epsilon, left)
