"""Privacy cost of events at one silo: sequential where their records overlap, else parallel.

Full batches alone have a closed form. Answers about samples are composed through privacy loss distributions; their
Gaussian-DP parameter is bounded by that of an answer about all records.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple, get_args

from fedcore.accounting.events import GaussianRelease, Mechanism, gaussian_delta, is_number, is_whole
from fedcore.accounting.gaussian import epsilon_of
from fedcore.accounting.loss_distributions.discrete_losses import Answers
from fedcore.accounting.loss_distributions.loss_curves import SAMPLED, gaussian
from fedcore.accounting.loss_distributions.loss_distribution import TOLERANCE, epsilon_of_curves

_MECHANISMS = frozenset(get_args(Mechanism))


class Kind(NamedTuple):
    """Parameters that decide the cost of a sampled answer, whichever shard of the records it was about."""

    sampling: str
    rate: float
    multiplier: float


Kinds = frozenset[tuple[Kind, int]]
Participation = tuple[float, Kinds]
"""Answers that touch one position: mu^2 of full batches, and the number of samples of each kind."""


def spent(events: Iterable[GaussianRelease], delta: float) -> float:
    """Epsilon >= 0 (nats) at `delta` of all these events at one silo: that of its worst position.

    Exact for full batches. With sampled answers an upper bound, typically within 0.1 %, and never more than if each had
    been about all records (argument: `GaussianRelease.gdp_mu_squared`). Infinite if an answer had no noise, or if no
    sound accountant for its sampling is known here (shown as `none`).
    Raises ValueError for an event that is malformed or unknown, or unless 0 < delta < 1.
    """
    listed = list(events)
    if any(event.mechanism != "gaussian" for event in listed):
        delta = gaussian_delta(delta, "discrete-gaussian")
    sampled = [event for event in listed if event.sampling != "full"]
    if not sampled:
        return epsilon_of(math.sqrt(worst_mu_squared(listed)), delta)
    for event in listed:
        check_event(event)
    if any(event.sampling not in SAMPLED or not event.sigma > 0 for event in sampled):  # NaN is no noise either
        return math.inf
    return max(at_one_position(full, kinds, delta) for full, kinds in by_position(listed))


def worst_mu_squared(events: Iterable[GaussianRelease]) -> float:
    """Largest, over a silo's positions, of the sum of squared mu of the events that touch the position.

    One record sits at one position, so replacing it changes only the events that touch it. The Gaussian answers among
    them compose to sum mu^2, and the silo's guarantee is that of its worst position. Lossless for full batches. For
    samples an upper bound, as if each had been about all records (argument: `GaussianRelease.gdp_mu_squared`).
    Source: Dong, Roth and Su 2022, Corollary 3.3; parallel composition over shards fixed by row index only.
    Raises ValueError for an event that this accountant does not know, or whose sampling has no such bound.
    """
    return _worst_mu_squared(tuple(Counter(events).items()))


# Silos of one size release the same events: a plan, its approvals and its accounts repeat this question. Events are
# counted because the cache would otherwise hold an account of 100,000 rounds as a tuple of as many.
@lru_cache(maxsize=4096)
def _worst_mu_squared(events: tuple[tuple[GaussianRelease, int], ...]) -> float:
    begun: dict[int, Counter[float]] = {}
    ended: dict[int, Counter[float]] = {}
    for event, times in events:
        check_event(event)
        if event.sampling != "full" and event.sampling not in SAMPLED:
            raise ValueError(f"no bound on mu is known for the sampled event {event}")
        begun.setdefault(event.start, Counter())[event.gdp_mu_squared] += times
        ended.setdefault(event.stop, Counter())[event.gdp_mu_squared] += times
    if any(math.isinf(each) for at in begun.values() for each in at):
        return math.inf
    # fsum over the open intervals anew at each border: no drift from adding and taking away.
    worst, here = 0.0, Counter[float]()
    for border in sorted({*begun, *ended}):
        here.subtract(ended.get(border, {}))
        here = +here + begun.get(border, Counter())
        worst = max(worst, math.fsum(here.elements()))
    return worst


# The silos of a plan, its phases and the silos' ledgers repeat the same questions.
@lru_cache(maxsize=4096)
def at_one_position(full: float, kinds: Kinds, delta: float, tolerance: float = TOLERANCE) -> float:
    """An upper bound on the epsilon at `delta` of one position's answers, to `tolerance`."""
    if math.isinf(full) or not kinds:
        return epsilon_of(math.sqrt(full), delta)
    # The cost as if each answer had been about all records, which needs no grid. Where noise is very large, the
    # truncations of a loss distribution decide its epsilon. It would not fall with more noise, and a search would never
    # end.
    always = math.hypot(math.sqrt(full), *(math.sqrt(count) / kind.multiplier for kind, count in sorted(kinds)))
    return min(epsilon_of_curves(curves_of(full, kinds), delta, tolerance), epsilon_of(always, delta))


def curves_of(full: float, kinds: Kinds) -> list[Answers]:
    """Privacy curves of one position: one for each kind of sample, and one for all full batches, if any."""
    # In a fixed order: a sum of floats depends on it.
    curves = [Answers(SAMPLED[kind.sampling](kind.rate, kind.multiplier), count) for kind, count in sorted(kinds)]
    if full > 0:
        curves.append(Answers(gaussian(math.sqrt(full)), 1))
    return curves


def settled(multiplier: float) -> float:
    """The multiplier rounded down to 40 bits; multipliers that differ by a division's rounding are equal.

    It is first raised by a relative 2^-50. A number of 40 bits whose last bit a division lowered comes out unchanged.
    """
    mantissa, exponent = math.frexp(multiplier * (1.0 + 2.0**-50))
    return math.ldexp(math.floor(mantissa * 2.0**40), exponent - 40)


def by_position(events: list[GaussianRelease]) -> set[Participation]:
    """The distinct participations of the stretches between the events' borders."""
    borders = sorted({border for event in events for border in (event.start, event.stop)})
    return {
        participation_of([event for event in events if event.start <= position < event.stop])
        for position in borders[:-1]
    }


def participation_of(events: Iterable[GaussianRelease]) -> Participation:
    """Sums the events of one position: mu^2 of full batches, and the number of samples of each kind.

    The events are ones that `spent` accepts, with noise.
    """
    here = list(events)
    full = math.fsum(event.gdp_mu_squared for event in here if event.sampling == "full")
    kinds: Counter[Kind] = Counter()
    for event in here:
        if event.sampling != "full":
            multiplier = settled(event.sigma / event.sensitivity)
            kinds[Kind(event.sampling, event.rate, multiplier)] += event.count
    return full, frozenset(kinds.items())


def check_event(event: GaussianRelease) -> None:
    """Raises ValueError for an event that is malformed, or of a kind that no accountant here knows."""
    known = event.mechanism in _MECHANISMS and event.adjacency == "replace-one"
    known = known and event.sampling in ("full", "with-replacement", *SAMPLED)
    counted = all(map(is_whole, (event.start, event.stop, event.count))) and 0 <= event.start < event.stop
    numbers = all(map(is_number, (event.sensitivity, event.sigma, event.rate)))
    sound = counted and numbers and event.count >= 1 and 0 < event.sensitivity < math.inf
    rated = sound and 0 < event.rate <= 1 and (event.sampling != "full" or event.rate == 1)
    if not (known and sound and rated):
        raise ValueError(f"no sound accountant is known here for the event {event}")
