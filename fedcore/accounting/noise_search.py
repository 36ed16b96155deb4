"""The least noise that keeps to an epsilon where only an accountant knows: a search that trusts nothing it finds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from scipy.optimize import brentq


class NoiseCache(Protocol):
    """Keeps what searches found: a guess, which the accountant checks before it is used again."""

    def get(self, question: dict[str, Any]) -> float | None:
        """The noise kept for this question; None if there is none."""
        ...

    def put(self, question: dict[str, Any], sigma: float) -> None:
        """Keeps it, or not; that is no error."""
        ...


_CACHE: ContextVar[NoiseCache | None] = ContextVar("noise cache", default=None)


@contextmanager
def noise_kept_in(cache: NoiseCache | None) -> Iterator[None]:
    """Within the block this thread's searches look into `cache` first, and keep there what they find."""
    token = _CACHE.set(cache)
    try:
        yield
    finally:
        _CACHE.reset(token)


TIGHT = 1e-3
"""How far below the target, relative, the epsilon of a kept noise may lie."""


def least_noise(accounted: Callable[[float], float], enough: float, epsilon: float, question: dict[str, Any]) -> float:
    """The least noise, to 1e-4 from above, with accounted(noise) <= epsilon; at most about `enough`, which suffices.

    Noise has the unit of `enough`. What is found is kept under `question` in the cache of `noise_kept_in`, if there is
    one, and checked by the accountant before it is used again.
    """
    cache = _CACHE.get()
    kept = cache.get(question) if cache is not None else None
    if kept is not None and 0 < kept < math.inf and (1 - TIGHT) * epsilon < accounted(kept) <= epsilon:
        return kept

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
    """`least_noise`, rounded up to 20 bits: whoever searches for the same comes to exactly the same."""
    mantissa, exponent = math.frexp(least_noise(accounted, enough, epsilon, question))
    steps = math.ceil(mantissa * 2.0**20)
    while accounted(math.ldexp(steps, exponent - 20)) > epsilon:
        steps += 1
    return math.ldexp(steps, exponent - 20)
