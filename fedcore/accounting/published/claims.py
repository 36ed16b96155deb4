"""A published formula in one setting: epsilon -> sigma in its range, and sigma -> claimed epsilon.

Every sigma is in this project's unit: standard deviation per coordinate of the noise on the *mean* over the records of
one answer. Means have the unit of loss per weight. Every epsilon is for replacing one record at one silo.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Literal

from fedcore.accounting.events import GaussianRelease, Sampling, mean_sensitivity
from fedcore.accounting.rounding import CENTRED
from fedcore.directed_rounding import in_full, shown_down, shown_up
from fedcore.errors import InputError

Scheme = Sampling | Literal["once"]


@dataclass(frozen=True)
class FormulaInputs:
    """Inputs of the published formulas for one silo: `rounds` answers, each about `batch` of n records.

    `batch`: its expected size for poisson. `local_steps`: noised gradients per round (K of DP-SCAFFOLD and BVR-L-SGD,
    tau of GMSolver). `period`: T of DIFF2, rounds from one restart to the next. `silos` and `silos_per_round` (None:
    all): M and lM of DP-SCAFFOLD, P of DIFF2. `kept`: share k/d of the coordinates that are sent. `step_delta` (None:
    delta): delta_0 of DP-FCRN.
    Raises InputError for options out of range; n, rounds, delta, batch and clip are checked by the caller.
    """

    n: int
    rounds: int
    delta: float
    batch: float
    clip: float = 1.0
    sampling: Scheme = "full"
    local_steps: int = 1
    period: int = 1
    silos: int = 1
    silos_per_round: int | None = None
    kept: float = 1.0
    step_delta: float | None = None

    def __post_init__(self) -> None:
        checks = [
            (self.local_steps >= 1, f"local_steps = {self.local_steps} must be at least 1"),
            (1 <= self.period <= self.rounds, f"period = {self.period} must lie in 1 .. rounds = {self.rounds}"),
            (1 <= self.picked <= self.silos, f"silos_per_round = {self.picked} must lie in 1 .. silos = {self.silos}"),
            (0 < self.kept <= 1, f"kept = {in_full(self.kept)} must be above 0 and at most 1"),
            (0 < self.small_delta <= 1, f"step_delta = {in_full(self.small_delta)} must be above 0 and at most 1"),
        ]
        for holds, sentence in checks:
            if not holds:
                raise InputError(sentence)

    @property
    def picked(self) -> int:
        return self.silos if self.silos_per_round is None else self.silos_per_round

    @property
    def small_delta(self) -> float:
        return self.delta if self.step_delta is None else self.step_delta

    def options(self) -> list[str]:
        """Names of the optional inputs that differ from their defaults."""
        plain = {"n", "rounds", "delta", "batch", "clip", "sampling"}
        return [f.name for f in fields(self) if f.name not in plain and getattr(self, f.name) != f.default]

    def event(self, count: int) -> GaussianRelease:
        """`count` answers with noise 1; with disjoint batches (once), the single one that uses a given record."""
        if self.sampling == "once":
            return GaussianRelease(0, int(self.batch), mean_sensitivity(self.clip, self.batch), 1.0)
        slack = CENTRED.slack(self.n, self.sampling != "full")
        sensitivity = mean_sensitivity(self.clip, self.batch, slack=slack)
        rate = self.batch / self.n
        return GaussianRelease(0, self.n, sensitivity, 1.0, count, sampling=self.sampling, rate=rate)


@dataclass(frozen=True)
class Kind:
    """Answers of one kind: their noise as a function of epsilon, and their privacy event (with any sigma)."""

    name: str
    sigma: Callable[[float], float]
    event: GaussianRelease


@dataclass(frozen=True)
class PaperFormula:
    """A published formula in one setting; `sigma` and `epsilon` describe the noise of `kinds[0]`.

    Stated for 0 < epsilon <= limit (strict: < limit), and from `least` on where the bound allows no smaller one.
    """

    kinds: tuple[Kind, ...]
    claim: Callable[[float], float]
    limit: float
    source: str
    strict: bool = False
    least: float = 0.0

    def sigma(self, epsilon: float) -> float:
        """Sigma > 0 of the first kind.

        Raises InputError, with value, bound and source, outside the stated range.
        """
        self._check(epsilon)
        return self.kinds[0].sigma(epsilon)

    def sigmas(self, epsilon: float) -> dict[str, float]:
        """Sigma of every kind of answer, by its name. Raises InputError outside the stated range."""
        self._check(epsilon)
        return {kind.name: kind.sigma(epsilon) for kind in self.kinds}

    def releases(self, epsilon: float) -> list[GaussianRelease]:
        """Privacy events of all answers at these sigmas, for an accountant. Raises InputError like `sigmas`."""
        self._check(epsilon)
        return [replace(kind.event, sigma=kind.sigma(epsilon)) for kind in self.kinds]

    def epsilon(self, sigma: float) -> float:
        """The epsilon that the formula claims for this sigma, inside or outside its stated range; inf for 0."""
        return self.claim(sigma) if sigma > 0 else math.inf

    def _check(self, epsilon: float) -> None:
        within = epsilon < self.limit if self.strict else epsilon <= self.limit
        if not (within and 0 < epsilon < math.inf and epsilon >= self.least):
            low = f"{shown_up(self.least, 6)} <= epsilon" if self.least > 0 else "0 < epsilon"
            high = "" if math.isinf(self.limit) else f" {'<' if self.strict else '<='} {shown_down(self.limit, 6)}"
            stated = "no epsilon at all here" if math.isinf(self.least) else low + high
            raise InputError(
                f"privacy.epsilon = {in_full(epsilon)} is outside the range of {self.source}: "
                f"it is stated for {stated}; use privacy.calibration = exact"
            )


def inverse(event: GaussianRelease, factor: float, limit: float, source: str, strict: bool = False) -> PaperFormula:
    """The formula sigma = factor / epsilon, up to and including limit (strict: below it)."""
    kind = Kind("sigma", lambda epsilon: factor / epsilon, event)
    return PaperFormula((kind,), lambda sigma: factor / sigma, limit, source, strict)


def crossing(falling: Callable[[float], float], target: float) -> float:
    """The smallest x in 1e-12 .. 1e12 (to 1e-15) at which a decreasing function is at most target.

    The function may jump.
    """
    low, high = math.log(1e-12), math.log(1e12)
    if falling(math.exp(high)) > target:
        return math.inf
    for _ in range(70):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(math.exp(middle)) > target else (low, middle)
    return math.exp(high)
