"""What released events cost at least, worked out a second time: no line of `fedcore.accounting` takes part.

Of every account here the true cost is at least what this says, so an account that says less charges too little. Full
batches have a closed form. Of secret samples a pair of neighbours is taken whose other records add nothing, with every
privacy loss rounded down to a grid: what composes to less than the truth (Meiser and Mohammadi 2018).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from scipy import stats
from scipy.signal import fftconvolve

from fedcore.accounting.events import GaussianRelease

LOST = 0.02
"""Nats that rounding down takes of the privacy loss of all answers together, about, with `FINEST` steps at least."""
FINEST = 2.0**-16


def squared(events: Iterable[GaussianRelease]) -> float:
    """The largest sum, over positions, of squared Gaussian-DP parameters, as if each answer had been about all."""
    listed = Counter(events)
    borders = sorted({event.start for event in listed})
    return max((sum(_mu(event, times) for event, times in listed.items() if event.start <= at < event.stop)
                for at in borders), default=0.0)  # fmt: skip


def delta_at_least(events: Iterable[GaussianRelease], epsilon: float) -> float:
    """A delta that these events together need at `epsilon` (nats), for the position that needs most."""
    listed = Counter(events)
    borders = sorted({event.start for event in listed})
    here = {
        frozenset((event, times) for event, times in listed.items() if event.start <= at < event.stop) for at in borders
    }
    return max((_at_one_position(each, epsilon) for each in here), default=0.0)


def gaussian(mu_squared: float, epsilon: float) -> float:
    """Delta of Gaussian answers (Balle and Wang 2018, Theorem 8) whose squared parameters add up to `mu_squared`."""
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
    total, at = _composed(events)
    above = at > epsilon
    return float(total[above] @ -np.expm1(epsilon - at[above]))


@lru_cache(maxsize=16)
def _composed(events: frozenset[tuple[GaussianRelease, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and values of the loss of all of these together, rounded down."""
    full = sum(_mu(event, times) for event, times in events if event.sampling == "full")
    sampled = [(event, times) for event, times in events if event.sampling != "full"]
    # A record and its opposite, each half of the sensitivity long, or nothing: two mixtures with one rate.
    many = sum(times * event.count for event, times in sampled) + 1
    step = max(FINEST, 2.0 ** math.floor(math.log2(LOST / many)))
    losses = [
        (_losses(event.rate, event.sensitivity / event.sigma / 2.0, step), times * event.count)
        for event, times in sampled
    ]
    if full > 0:
        losses.append((_losses(1.0, math.sqrt(full) / 2.0, step), 1))
    total, lowest = np.ones(1), 0
    for (mass, first), times in losses:
        for bit in bin(times)[2:][::-1]:
            if bit == "1":
                total, lowest = _trimmed(np.maximum(fftconvolve(total, mass), 0.0), lowest + first)
            mass, first = _trimmed(np.maximum(fftconvolve(mass, mass), 0.0), 2 * first)
    return total, (np.arange(len(total)) + lowest) * step


def _losses(rate: float, shift: float, step: float) -> tuple[np.ndarray, int]:
    """Probabilities, under the first of (1 - rate) N(0, 1) + rate N(+-shift, 1), of losses rounded down to the grid."""
    edges = np.linspace(-shift - 9.0, shift + 9.0, 2**16 + 1)

    def loss(x: np.ndarray) -> np.ndarray:
        first, second = (
            np.logaddexp(math.log1p(-rate) if rate < 1 else -np.inf, math.log(rate) + sign * shift * x - shift**2 / 2)
            for sign in (1.0, -1.0)
        )
        return np.asarray(first - second)

    mass = (1.0 - rate) * np.diff(stats.norm.cdf(edges)) + rate * np.diff(stats.norm.cdf(edges - shift))
    at = np.floor(loss(edges[:-1]) / step).astype(np.int64)  # it rises with x: the least of a cell is at its left edge
    at = np.minimum.accumulate(at[::-1])[::-1]  # but for rounding
    first = int(at.min())
    return np.bincount(at - first, weights=mass), first


def _trimmed(mass: np.ndarray, first: int) -> tuple[np.ndarray, int]:
    """Without what hardly ever happens at both ends: its probability is left out, which lowers a delta."""
    kept = np.flatnonzero(mass > 1e-17)
    if not len(kept):
        return mass, first
    return mass[kept[0] : kept[-1] + 1], first + int(kept[0])
