"""Least cost of released events, a second implementation that uses no line of `fedcore.accounting`.

The true cost of every account is at least this one, so an account below it charges too little. Full batches have a
closed form. Secret samples are bounded by concrete pairs of neighbours. Their other records add nothing, or what
replaces the record. Every privacy loss is rounded down to a grid, so the composition is below the truth (Meiser and
Mohammadi 2018).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache

import numpy as np
from scipy import stats
from scipy.signal import fftconvolve

from fedcore.accounting.events import GaussianRelease

Pair = Callable[[np.ndarray, float, float], np.ndarray]
"""Log likelihoods (2, N) of two neighbours at numbers (N,), from a rate and sensitivity over noise."""

LOST = 0.02
"""Approximate nats by which rounding lowers the privacy loss of all answers.

The step is at least `FINEST`."""
FINEST = 2.0**-16


def squared(events: Iterable[GaussianRelease]) -> float:
    """Largest sum of squared Gaussian-DP parameters over positions, as if answers were about all records."""
    listed = Counter(events)
    borders = sorted({event.start for event in listed})
    return max(
        (sum(_mu(event, times) for event, times in listed.items() if event.start <= at < event.stop) for at in borders),
        default=0.0,
    )


def delta_at_least(events: Iterable[GaussianRelease], epsilon: float) -> float:
    """A lower bound on the delta of these events at `epsilon` (nats), for the position that needs most."""
    listed = Counter(events)
    borders = sorted({event.start for event in listed})
    here = {
        frozenset((event, times) for event, times in listed.items() if event.start <= at < event.stop) for at in borders
    }
    return max((_at_one_position(each, epsilon) for each in here), default=0.0)


def gaussian(mu_squared: float, epsilon: float) -> float:
    """Delta of Gaussian answers whose squared parameters add up to `mu_squared`.

    Source: Balle and Wang 2018, Theorem 8.
    """
    if mu_squared <= 0.0:
        return 0.0
    mu = math.sqrt(mu_squared)
    if math.isinf(mu):
        return 1.0
    second = epsilon + float(stats.norm.logcdf(-mu / 2 - epsilon / mu))
    return max(0.0, float(stats.norm.cdf(mu / 2 - epsilon / mu)) - math.exp(min(0.0, second)))


def _mu(event: GaussianRelease, times: int) -> float:
    return math.inf if event.sigma <= 0 else times * event.count * (event.sensitivity / event.sigma) ** 2


def _at_one_position(events: frozenset[tuple[GaussianRelease, int]], epsilon: float) -> float:
    full = sum(_mu(event, times) for event, times in events if event.sampling == "full")
    sampled = [(event, times) for event, times in events if event.sampling != "full"]
    if not sampled or math.isinf(full):
        return gaussian(full, epsilon)
    if any(event.sigma <= 0 for event, _ in sampled):
        return max(event.rate for event, _ in sampled if event.sigma <= 0)
    # A sample of fixed size without the record has another one in its place: its opposite, if all others are.
    fixed = full == 0.0 and all(event.sampling == "without-replacement" for event, _ in sampled)
    found = 0.0
    for against in (_opposite, _absent) if fixed else (_opposite,):
        total, at = _composed(events, against)
        above = at > epsilon
        found = max(found, float(total[above] @ -np.expm1(epsilon - at[above])))
    return found


@lru_cache(maxsize=16)
def _composed(events: frozenset[tuple[GaussianRelease, int]], against: Pair) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and values of the loss of all these events, rounded down."""
    full = sum(_mu(event, times) for event, times in events if event.sampling == "full")
    sampled = [(event, times) for event, times in events if event.sampling != "full"]
    many = sum(times * event.count for event, times in sampled) + 1
    step = max(FINEST, 2.0 ** math.floor(math.log2(LOST / many)))
    losses = [
        (_losses(event.rate, event.sensitivity / event.sigma, step, against), times * event.count)
        for event, times in sampled
    ]
    if full > 0:
        losses.append((_losses(1.0, math.sqrt(full), step, against), 1))
    total, lowest = np.ones(1), 0
    for (mass, first), times in losses:
        for bit in bin(times)[2:][::-1]:
            if bit == "1":
                total, lowest = _trimmed(np.maximum(fftconvolve(total, mass), 0.0), lowest + first)
            mass, first = _trimmed(np.maximum(fftconvolve(mass, mass), 0.0), 2 * first)
    return total, (np.arange(len(total)) + lowest) * step


def _opposite(x: np.ndarray, rate: float, mu: float) -> np.ndarray:
    """Log likelihoods over N(0, 1)'s of a record and of its opposite, each half of the sensitivity long."""
    rest, half = _log(1.0 - rate), mu / 2.0
    return np.array([np.logaddexp(rest, _log(rate) + sign * half * x - half**2 / 2) for sign in (1.0, -1.0)])


def _absent(x: np.ndarray, rate: float, mu: float) -> np.ndarray:
    """Log likelihoods of a record a sensitivity away from its replacement, and of the replacement."""
    return np.array([np.logaddexp(_log(1.0 - rate), _log(rate) + mu * x - mu**2 / 2), np.zeros_like(x)])


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -math.inf


def _losses(rate: float, mu: float, step: float, against: Pair) -> tuple[np.ndarray, int]:
    """Probabilities, under the first of a pair, of its losses rounded down to the grid."""
    shift = mu / 2.0 if against is _opposite else mu
    edges = np.linspace(-shift - 9.0, shift + 9.0, 2**16 + 1)
    first, second = against(edges[:-1], rate, mu)
    mass = (1.0 - rate) * np.diff(stats.norm.cdf(edges)) + rate * np.diff(stats.norm.cdf(edges - shift))
    at = np.floor((first - second) / step).astype(np.int64)  # the loss rises with x: a cell's least is at its left edge
    at = np.minimum.accumulate(at[::-1])[::-1]  # but for rounding
    lowest = int(at.min())
    return np.bincount(at - lowest, weights=mass), lowest


def _trimmed(mass: np.ndarray, first: int) -> tuple[np.ndarray, int]:
    """Drops both ends of negligible probability, which lowers a delta."""
    inside = np.flatnonzero(mass > 1e-17)
    if not len(inside):
        return mass, first
    return mass[inside[0] : inside[-1] + 1], first + int(inside[0])
