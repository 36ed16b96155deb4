"""Search for the least noise whose accounted epsilon meets a target; the accountant checks results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from scipy.optimize import brentq


class NoiseCache(Protocol):
    """Store of found noise; the accountant checks each value again before it is used."""

    def get(self, question: dict[str, Any]) -> float | None:
        """The noise stored for this question; None if there is none."""
        ...

    def put(self, question: dict[str, Any], sigma: float) -> None:
        """Stores the noise. An implementation may skip this without an error."""
        ...


_CACHE: ContextVar[NoiseCache | None] = ContextVar("noise cache", default=None)


@contextmanager
def noise_cached_in(cache: NoiseCache | None) -> Iterator[None]:
    """Makes this thread's searches in the block look into `cache` first and store their results there."""
    token = _CACHE.set(cache)
    try:
        yield
    finally:
        _CACHE.reset(token)


TIGHT = 1e-3
"""Largest relative distance of a cached noise's epsilon below the target."""


def least_noise(accounted: Callable[[float], float], enough: float, epsilon: float, question: dict[str, Any]) -> float:
    """The least noise, to 1e-4 from above, with accounted(noise) <= epsilon.

    `enough`: a noise that suffices; the result is at most about that.
    Noise has the unit of `enough`. The result is stored under `question` in the cache of `noise_cached_in`, if there is
    one. The accountant checks a stored value before it is used again.
    """
    cache = _CACHE.get()
    stored = cache.get(question) if cache is not None else None
    if stored is not None and 0 < stored < math.inf and (1 - TIGHT) * epsilon < accounted(stored) <= epsilon:
        return stored

    def excess(log_noise: float) -> float:
        return math.log(max(accounted(math.exp(log_noise)), 1e-12) / epsilon)

    low = math.log(enough)
    while excess(low - 1.0) <= 0:
        low -= 1.0
    # An accountant's upper bound may lie above the target where the closed form that gave `enough` meets it.
    found = enough if excess(low) > 0 else math.exp(brentq(excess, low - 1.0, low, xtol=2e-5))
    while accounted(found) > epsilon:
        found *= 1 + 2e-5
    if cache is not None:
        cache.put(question, found)
    return found


def least_short_noise(
    accounted: Callable[[float], float], enough: float, epsilon: float, question: dict[str, Any]
) -> float:
    """`least_noise`, rounded up to 20 bits, so that equal questions have equal answers on every machine."""
    mantissa, exponent = math.frexp(least_noise(accounted, enough, epsilon, question))
    steps = math.ceil(mantissa * 2.0**20)
    while accounted(math.ldexp(steps, exponent - 20)) > epsilon:
        steps += 1
    return math.ldexp(steps, exponent - 20)
