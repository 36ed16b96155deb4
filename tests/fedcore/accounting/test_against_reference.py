"""Accounted epsilons against a second accountant, on random settings; and that one against closed forms.

All 1,080 settings and a table of the figures: `pytest -m minutes -s` of this file.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm

from fedcore.accounting.composition import spent
from fedcore.accounting.events import GaussianRelease, Sampling
from tests.fedcore.accounting.reference_accountant import Bracket, Pair, Rounded, fixed_size_attack, full_batch, poisson
from tests.selection import some_in_make_test

SPAN = (0.05, 20.0)
WIDTH = 0.005
TIGHT = 1.01
"""Largest ratio of an accounted epsilon to the bracket's upper end, for full batches and Poisson samples."""
LOUD, LOUD_ABOVE, QUIET_ABOVE = 6.0, 1.06, 1.2
"""The same for fixed-size batches, whose upper end is that of one attack: z at least LOUD, or less noise than that.

The profile that is accounted bounds both orders of the attack's pair at once, which no pair does; the gap is the skew
of the loss of one answer. It grows as the noise falls and with the rounds: 1.03 at most beyond z = 10, 1.16 near 1.4.
"""


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
    """Values of z whose Gaussian-DP parameter, which decides epsilon, covers the epsilons in SPAN."""
    while True:
        n, rounds = round(log_uniform(rng, 10, 1e6)), round(log_uniform(rng, 1, 1e5))
        z = math.sqrt(rounds) / log_uniform(rng, 0.005, 8.0)
        yield Setting("full", n, 1.0, z, rounds, log_uniform(rng, 1e-12, 1e-3))


def poisson_settings(rng: np.random.Generator) -> Iterator[Setting]:
    while True:
        q, rounds, z = log_uniform(rng, 1e-3, 1), round(log_uniform(rng, 1, 1e4)), log_uniform(rng, 0.5, 100)
        yield Setting("poisson", 1000, q, z, rounds, log_uniform(rng, 1e-12, 1e-3))


def fixed_settings(rng: np.random.Generator, low: float, high: float) -> Iterator[Setting]:
    """z in [low, high]."""
    while True:
        n, rounds, z = round(log_uniform(rng, 100, 1e5)), round(log_uniform(rng, 1, 1e3)), log_uniform(rng, low, high)
        batch = max(1, round(n * log_uniform(rng, 1e-2, 1)))
        yield Setting("without-replacement", n, batch / n, z, rounds, log_uniform(rng, 1e-10, 1e-4))


@dataclass
class Tally:
    """Results of a batch of settings: accounted epsilons with their brackets."""

    name: str
    kept: list[tuple[Setting, Bracket, float]] = field(default_factory=list)
    rejected: int = 0
    reference_seconds: list[float] = field(default_factory=list)
    accounted_seconds: list[float] = field(default_factory=list)

    def too_low(self) -> list[str]:
        """Settings whose accounted epsilon is below the bracket, or whose bracket is too wide to decide."""
        return [show(*kept) for kept in self.kept if not (kept[1].width < WIDTH and kept[1].lower <= kept[2])]

    def too_high(self, above: float) -> list[str]:
        return [show(*kept) for kept in self.kept if kept[2] > above * kept[1].upper]

    def row(self) -> str:
        low, loose = min(accounted / bracket.lower for _, bracket, accounted in self.kept), len(self.too_high(TIGHT))
        high = max(accounted / bracket.upper for _, bracket, accounted in self.kept)
        width = max(bracket.width for _, bracket, _ in self.kept)
        own, other = (1e3 * statistics.median(t) for t in (self.reference_seconds, self.accounted_seconds))
        return (
            f"{self.name:20} {len(self.kept):5} {self.rejected:8} {low:10.5f} {high:10.5f} {loose:7}"
            f" {width:8.1e} {own:12.1f} {other:12.1f}"
        )


HEAD = (
    f"{'':20} {'kept':>5} {'rejected':>8} {'min /lower':>10} {'max /upper':>10} {'> 1.01':>7}"
    f" {'bracket':>8} {'reference ms':>12} {'accounted ms':>12}"
)


def show(setting: Setting, bracket: Bracket, accounted: float) -> str:
    return f"{accounted:.6g} for [{bracket.lower:.6g}, {bracket.upper:.6g}]: {setting}"


def compare(name: str, settings: Iterator[Setting], wanted: int) -> Tally:
    """The first `wanted` settings whose reference epsilon is in SPAN."""
    tally = Tally(name)
    while len(tally.kept) < wanted:
        setting = next(settings)
        start = time.perf_counter()
        bracket = setting.reference()
        middle = time.perf_counter()
        if not SPAN[0] <= bracket.lower <= bracket.upper <= SPAN[1]:
            tally.rejected += 1
            continue
        tally.kept.append((setting, bracket, setting.accounted()))
        tally.reference_seconds.append(middle - start)
        tally.accounted_seconds.append(time.perf_counter() - middle)
    return tally


# Accounted against reference


def test_some_full_batches():
    tally = compare("full", full_settings(np.random.default_rng(20)), 30)
    assert tally.too_low() + tally.too_high(TIGHT) == []


def test_some_poisson_samples():
    tally = compare("poisson", poisson_settings(np.random.default_rng(20)), 12)
    assert tally.too_low() + tally.too_high(TIGHT) == []


def test_some_fixed_size_batches():
    tally = compare("fixed", fixed_settings(np.random.default_rng(20), LOUD, 50.0), 8)
    assert tally.too_low() + tally.too_high(LOUD_ABOVE) == []


@pytest.mark.parametrize(
    ("q", "z", "rounds", "delta"),
    some_in_make_test(
        [(0.003, 0.52, 6, 2e-8), (0.001, 0.5, 10_000, 1e-12), (0.0194, 0.5755, 28, 4e-7)],
        [(0.003, 0.52, 6, 2e-8), (0.0194, 0.5755, 28, 4e-7)],
    ),
)
def test_rare_records_in_little_noise_are_accounted_tightly(q, z, rounds, delta):
    setting = Setting("poisson", 1000, q, z, rounds, delta)
    assert setting.accounted() <= TIGHT * setting.reference().upper


@pytest.fixture(scope="module")
def tallies() -> Iterator[dict[str, Tally]]:
    """Settings of each scheme, from separate generators, so that those of one do not depend on another."""
    started = time.perf_counter()
    made = [
        compare("full", full_settings(np.random.default_rng(1)), 500),
        compare("poisson", poisson_settings(np.random.default_rng(2)), 500),
        compare("fixed, z >= 6", fixed_settings(np.random.default_rng(3), LOUD, 50.0), 40),
        compare("fixed, z < 6", fixed_settings(np.random.default_rng(4), 0.5, LOUD), 40),
    ]
    print("\n" + "\n".join([HEAD, *(tally.row() for tally in made)]))
    print(f"{time.perf_counter() - started:.0f} s in all; epsilons from {SPAN[0]} to {SPAN[1]}")
    yield {tally.name: tally for tally in made}


@pytest.mark.slow
@pytest.mark.minutes
@pytest.mark.hours
def test_no_setting_is_accounted_too_low(tallies):
    assert [line for tally in tallies.values() for line in tally.too_low()] == []


@pytest.mark.slow
@pytest.mark.minutes
@pytest.mark.hours
@pytest.mark.parametrize(
    "name, above", [("full", TIGHT), ("poisson", TIGHT), ("fixed, z >= 6", LOUD_ABOVE), ("fixed, z < 6", QUIET_ABOVE)]
)
def test_no_setting_is_accounted_too_high(tallies, name, above):
    assert tallies[name].too_high(above) == []


# Planted bugs


def half_the_noise(setting: Setting) -> float:
    return replace(setting, z=setting.z / 2).accounted()


def twice_the_noise(setting: Setting) -> float:
    return replace(setting, z=setting.z * 2).accounted()


def one_round_forgotten_in_fifty(setting: Setting) -> float:
    return replace(setting, rounds=setting.rounds * 49 // 50).accounted()


def one_percent_less(setting: Setting) -> float:
    return 0.99 * setting.accounted()


@pytest.mark.parametrize("bug", [half_the_noise, twice_the_noise, one_round_forgotten_in_fifty, one_percent_less])
@pytest.mark.parametrize("sampling, q", [("full", 1.0), ("poisson", 0.1)])
def test_a_planted_bug_is_caught(bug: Callable[[Setting], float], sampling: Sampling, q: float):
    setting = Setting(sampling, 1000, q, 60 * q, 1000, 1e-7)
    bracket = setting.reference()
    assert bracket.lower <= setting.accounted() <= TIGHT * bracket.upper
    assert not bracket.lower <= bug(setting) <= TIGHT * bracket.upper


# The reference


def exact_delta(q: float, z: float, eps: float) -> float:
    """One Poisson-sampled answer: both tails beyond the point where the loss is eps, by bisection."""
    s = 2 * z

    def tail(x: float, mean: float) -> float:
        return (1 - q) * norm.sf(x, 0, s) + q * norm.sf(x, mean, s)

    def loss(x: float) -> float:
        return math.log((1 - q + q * math.exp((x - 0.5) / s**2)) / (1 - q + q * math.exp((-x - 0.5) / s**2)))

    x = brentq(lambda x: loss(x) - eps, -100 * s * s, 100 * s * s)
    return tail(x, 1) - math.exp(eps) * tail(x, -1)


def exact_delta_of_two(q: float, z: float, eps: float) -> float:
    """Two answers: the second's delta at eps minus the first one's loss, integrated over the first."""
    s = 2 * z

    def density(x: float, mean: float) -> float:
        return (1 - q) * norm.pdf(x, 0, s) + q * norm.pdf(x, mean, s)

    def inner(x: float) -> float:
        return density(x, 1) * exact_delta(q, z, eps - math.log(density(x, 1) / density(x, -1)))

    return quad(inner, -9 * s, 11 * s, limit=400, epsabs=0, epsrel=1e-9, points=[0, 2 * s, 4 * s, 6 * s])[0]


@pytest.mark.parametrize("q, z, delta", [(0.2, 0.5, 1e-6), (0.01, 0.6, 1e-5), (0.5, 3.0, 1e-9), (0.9, 10.0, 1e-4)])
def test_one_and_two_poisson_answers_by_integration(q, z, delta):
    for rounds, exact in ((1, exact_delta), (2, exact_delta_of_two)):
        bracket = poisson(q, z, rounds, delta)
        assert 0 < bracket.width < WIDTH
        assert exact(q, z, bracket.upper) <= delta <= exact(q, z, bracket.lower)


@pytest.mark.parametrize("scheme, z", [(poisson, 3.0), (poisson, 90.0), (fixed_size_attack, 20.0)])
@pytest.mark.parametrize("rounds, delta", [(1, 1e-3), (30, 1e-12), (10_000, 1e-9)])
def test_a_sample_of_everything_is_a_full_batch(scheme, z, rounds, delta):
    bracket, exact = scheme(1.0, z, rounds, delta), full_batch(z, rounds, delta)
    assert bracket.lower <= exact.lower and exact.upper <= bracket.upper
    assert bracket.upper <= exact.upper * 1.0005


def test_a_full_batch_at_mu_one_is_what_tables_of_the_normal_distribution_give():
    """delta(1) = Phi(-1/2) - e Phi(-3/2) = 0.30853753873 - 2.71828182846 * 0.06680720127."""
    bracket = full_batch(1.0, 1, 0.30853753872599 - math.e * 0.06680720126886)
    assert bracket.lower == pytest.approx(1.0, abs=1e-9) and bracket.width < 1e-9


def test_a_finer_bracket_is_inside_a_coarser_one():
    brackets = [poisson(0.05, 1.5, 500, 1e-8, width) for width in (0.2, 0.04, 0.004, 0.001)]
    for coarse, fine in pairwise(brackets):
        assert coarse.lower <= fine.lower < fine.upper <= coarse.upper and fine.width <= coarse.width


def test_epsilon_rises_with_rate_and_rounds_and_falls_with_noise_and_delta():
    base = poisson(0.05, 1.5, 500, 1e-8)
    assert poisson(0.06, 1.5, 500, 1e-8).lower > base.upper
    assert poisson(0.05, 1.5, 600, 1e-8).lower > base.upper
    assert poisson(0.05, 1.7, 500, 1e-8).upper < base.lower
    assert poisson(0.05, 1.5, 500, 1e-7).upper < base.lower


@pytest.mark.parametrize("step", [1e-3, 0.3])
def test_rounding_keeps_the_masses_of_both_and_never_lowers_delta(step):
    """The dominating pair has the same totals; one answer's delta is at least the pair's, on and off the grid."""
    q, z = 0.1, 0.7
    s = 2 * z
    pair = Pair(
        s,
        lambda x: (1 - q) * norm.pdf(x, 0, s) + q * norm.pdf(x, 1, s),
        lambda x: np.log1p(q * np.expm1((x - 0.5) / s**2)) - np.log1p(q * np.expm1((-x - 0.5) / s**2)),
        lambda loss: s**2 * (loss / 2 + np.arcsinh((1 - q) / q * math.exp(0.5 / s**2) * np.sinh(loss / 2))),
    )
    rounded = Rounded.of(pair, step, 12 * s)
    mass = np.exp(rounded.log_mass)
    assert mass.sum() == pytest.approx(1, abs=1e-13)
    assert (mass * np.exp(-rounded.losses)).sum() == pytest.approx(1, abs=1e-13)
    for eps in (0.0, 0.1, 0.3, 0.55, 1.3):
        above = float(mass @ np.maximum(0.0, -np.expm1(eps - rounded.losses)))
        assert above >= exact_delta(q, z, eps) * (1 - 1e-9)
