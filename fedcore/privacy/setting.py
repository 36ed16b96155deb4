"""Noise, epsilon and rounds of a silo that answers about its records in one way: each from the other two."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedcore.errors import InputError
from fedcore.privacy.claims import PaperFormula, Question, Scheme
from fedcore.privacy.composition import spent
from fedcore.privacy.events import GaussianRelease, mean_sensitivity
from fedcore.privacy.gaussian import mu_of
from fedcore.privacy.noise_search import least_noise
from fedcore.privacy.papers import printed
from fedcore.privacy.sigma_cache import SigmaCache

ROUNDS_LIMIT = 10**7


@dataclass(frozen=True)
class Setting:
    """`rounds` noised means of gradients clipped to norm `clip`, each about a batch of a silo's n records.

    `sampling`: the whole silo ("full", batch = n), a sample drawn anew each round, or "once": disjoint batches, so that
    each record is used in one round. Sigma is the standard deviation per coordinate of the noise on the mean.
    Raises InputError for numbers that do not fit together.
    """

    n: int
    rounds: int
    delta: float
    batch: int | None = None
    clip: float = 1.0
    sampling: Scheme = "full"

    def __post_init__(self) -> None:
        whole = self.batch is None or self.batch == self.n
        checks = [
            (self.n >= 1, f"n = {self.n} must be at least 1"),
            (self.rounds >= 1, f"rounds = {self.rounds} must be at least 1"),
            (0 < self.clip < math.inf, f"clip = {self.clip:g} must be a positive number"),
            (0 < self.delta * self.n < 1, f"delta = {self.delta:g} must be above 0 and below 1/n (n = {self.n})"),
            (1 <= self.size <= self.n, f"batch = {self.size} must lie between 1 and n = {self.n}"),
            (whole or self.sampling != "full", f"batch = {self.size} with sampling full must be n = {self.n}"),
        ]
        if self.sampling == "once":
            fits = self.rounds * self.size <= self.n
            checks.append((fits, f"{self.rounds} rounds of {self.size} records, each once, need n >= their product"))
        for holds, sentence in checks:
            if not holds:
                raise InputError(sentence)

    @property
    def size(self) -> int:
        """Records of a batch (expected, for Poisson samples)."""
        return self.n if self.batch is None else self.batch

    @property
    def sensitivity(self) -> float:
        return mean_sensitivity(self.clip, self.size)

    def event(self, sigma: float) -> GaussianRelease:
        """What all rounds together reveal of the record that they touch most often."""
        return replace(self.question().event(self.rounds), sigma=sigma)

    def epsilon(self, sigma: float) -> float:
        """Accounted epsilon of this noise (see `composition.spent`); infinite if there is none, or no accountant."""
        return spent([self.event(sigma)], self.delta)

    def sigma(self, epsilon: float, cache: SigmaCache | None = None) -> float:
        """The least noise that keeps to `epsilon`: to 1e-10 for full batches and once, else to 1e-4, from above.

        What a search found is kept in `cache`, and checked by the accountant before it is used again.
        Raises InputError if epsilon is not positive, or no accountant is known for the sampling.
        """
        if not 0 < epsilon < math.inf:
            raise InputError(f"epsilon = {epsilon:g} must be a positive number")
        full = self.sensitivity * math.sqrt(self.event(1.0).count) / mu_of(epsilon, self.delta)
        if self.sampling in ("full", "once"):
            return full
        # A sample is never worse than answering about all records each time, with the same noise.
        if math.isinf(self.epsilon(full)):
            raise InputError(f"sampling {self.sampling}: no sound accountant is known here; use another scheme")

        return least_noise(self.epsilon, full, epsilon, {**asdict(self), "epsilon": epsilon}, cache)

    def question(self, **options: Any) -> Question:
        """This setting as the printed formulas are asked about it. Raises InputError for options out of range."""
        return Question(self.n, self.rounds, self.delta, self.size, self.clip, self.sampling, **options)

    @property
    def paper(self) -> PaperFormula:
        """The printed formula of the main method: its multi-pass one, or (once) its one-pass baseline's."""
        return printed("lowy-2023-one-pass" if self.sampling == "once" else "gao-2024", self.question())

    def rounds_for(self, epsilon: float, sigma: float) -> int:
        """The largest number of rounds that keeps to `epsilon` with this noise; 0 if one is too many.

        Raises InputError if there is no bound below 10 million.
        """

        def keeps(rounds: int) -> bool:
            return replace(self, rounds=rounds).epsilon(sigma) <= epsilon

        if self.sampling == "once":
            return self.n // self.size if keeps(1) else 0
        return largest(keeps)


def largest(keeps: Callable[[int], bool]) -> int:
    """The largest count that `keeps` holds for, which it does up to there and not beyond."""
    if not keeps(1):
        return 0
    low, high = 1, 2
    while keeps(high):
        low, high = high, 2 * high
        if low >= ROUNDS_LIMIT:
            raise InputError(f"more than {ROUNDS_LIMIT} rounds keep to this epsilon; ask for less noise")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low
