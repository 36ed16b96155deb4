"""Accounted epsilons against a second accountant, on random settings; and that one against closed forms.

All 1,040 settings and a table of the figures: python -m pytest -m minutes -s tests/fedcore/test_against_reference.py
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from fedcore.privacy.composition import spent
from fedcore.privacy.events import GaussianRelease, Sampling
from tests.fedcore.reference_accountant import Bracket, Pair, Rounded, fixed_size_attack, full_batch, poisson

SPAN = (0.05, 20.0)
WIDTH = 0.005
ABOVE: dict[Sampling, float] = {"full": 1.01, "poisson": 1.01, "without-replacement": 1.06}
"""How far above the upper end an accounted epsilon may be; for fixed-size batches that is the end of an attack."""


@dataclass(frozen=True)
class Setting:
    """R answers about n records at one silo; z is sigma over the change of the answer when a record is replaced."""

    sampling: Sampling
    n: int
    q: float
    z: float
    rounds: int
    delta: float

    def reference(self) -> Bracket:
        if self.sampling == "full":
            return full_batch(self.z, self.rounds, self.delta)
        scheme = poisson if self.sampling == "poisson" else fixed_size_attack
        return scheme(self.q, self.z, self.rounds, self.delta, span=SPAN)

    def accounted(self) -> float:
        sensitivity = 2.0 / (self.q * self.n)
        sigma = self.z * sensitivity
        return spent(
            [GaussianRelease(0, self.n, sensitivity, sigma, self.rounds, sampling=self.sampling, rate=self.q)],
            self.delta,
        )


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def full_settings(rng: np.random.Generator) -> Iterator[Setting]:
    """z such that the Gaussian-DP parameter, which decides epsilon, covers what gives epsilons in SPAN."""
    while True:
        n, rounds = round(log_uniform(rng, 10, 1e6)), round(log_uniform(rng, 1, 1e5))
        z = math.sqrt(rounds) / log_uniform(rng, 0.005, 8.0)
        yield Setting("full", n, 1.0, z, rounds, log_uniform(rng, 1e-12, 1e-3))


def poisson_settings(rng: np.random.Generator) -> Iterator[Setting]:
    while True:
        q, rounds, z = log_uniform(rng, 1e-3, 1), round(log_uniform(rng, 1, 1e4)), log_uniform(rng, 0.5, 100)
        yield Setting("poisson", 1000, q, z, rounds, log_uniform(rng, 1e-12, 1e-3))


def fixed_settings(rng: np.random.Generator) -> Iterator[Setting]:
    while True:
        n, rounds, z = round(log_uniform(rng, 100, 1e5)), round(log_uniform(rng, 1, 1e3)), log_uniform(rng, 0.5, 50)
        batch = max(1, round(n * log_uniform(rng, 1e-2, 1)))
        yield Setting("without-replacement", n, batch / n, z, rounds, log_uniform(rng, 1e-10, 1e-4))


@dataclass
class Tally:
    """What a batch of settings came to."""

    sampling: Sampling
    kept: list[tuple[Setting, Bracket, float]] = field(default_factory=list)
    rejected: int = 0
    reference_seconds: list[float] = field(default_factory=list)
    accounted_seconds: list[float] = field(default_factory=list)

    def wrong(self) -> list[str]:
        """Settings that were accounted too low or too high, or whose bracket is too wide to tell."""
        return [
            f"{accounted:.6g} not in [{bracket.lower:.6g}, {ABOVE[self.sampling]} * {bracket.upper:.6g}]: {setting}"
            for setting, bracket, accounted in self.kept
            if not agrees(bracket, accounted, ABOVE[self.sampling])
        ]

    def row(self) -> str:
        low = min(accounted / bracket.lower for _, bracket, accounted in self.kept)
        high = max(accounted / bracket.upper for _, bracket, accounted in self.kept)
        width = max(bracket.width for _, bracket, _ in self.kept)
        times = (statistics.median(t) * 1e3 for t in (self.reference_seconds, self.accounted_seconds))
        return f"{self.sampling:20} {len(self.kept):5} {self.rejected:8} {low:10.5f} {high:10.5f} {width:8.2e} " + (
            " ".join(f"{t:11.1f}" for t in times)
        )


HEAD = f"{'':20} {'kept':>5} {'rejected':>8} {'min /lower':>10} {'max /upper':>10} {'bracket':>8} reference_ms accounted_ms"


def agrees(bracket: Bracket, accounted: float, above: float) -> bool:
    return bracket.width < WIDTH and bracket.lower <= accounted <= above * bracket.upper


def compare(settings: Iterator[Setting], wanted: int) -> Tally:
    """The first `wanted` settings whose epsilon is in SPAN by the reference, which alone decides."""
    tally = Tally("full")
    for setting in settings:
        tally.sampling = setting.sampling
        start = time.perf_counter()
        bracket = setting.reference()
        middle = time.perf_counter()
        if not SPAN[0] <= bracket.lower <= bracket.upper <= SPAN[1]:
            tally.rejected += 1
            continue
        tally.kept.append((setting, bracket, setting.accounted()))
        tally.reference_seconds.append(middle - start)
        tally.accounted_seconds.append(time.perf_counter() - middle)
        if len(tally.kept) == wanted:
            break
    return tally
