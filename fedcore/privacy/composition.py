"""What a list of events costs a silo: in sequence where records overlap, in parallel where they do not.

Full batches alone have a closed form. Where an answer was about a sample, privacy loss distributions compose it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple, get_args

from fedcore.privacy.events import GaussianRelease, Mechanism, gaussian_delta
from fedcore.privacy.gaussian import epsilon_of
from fedcore.privacy.loss_curves import SAMPLED, gaussian
from fedcore.privacy.loss_distribution import epsilon_of_curves

_MECHANISMS = frozenset(get_args(Mechanism))


class _Kind(NamedTuple):
    """What decides the cost of a sampled answer, whichever piece of the records it was about."""

    sampling: str
    rate: float
    multiplier: float


def spent(events: Iterable[GaussianRelease], delta: float) -> float:
    """An epsilon >= 0 (nats) at `delta` for all of these events at one silo together: that of its worst position.

    For full batches the smallest one; with sampled answers an upper bound, typically within 0.1 %. Infinite if an
    answer had no noise, or its sampling has no accountant here that is known to be sound (shown as `none`).
    Raises ValueError for an event that is malformed or unknown, or unless 0 < delta < 1.
    """
    listed = list(events)
    if any(event.mechanism != "gaussian" for event in listed):
        delta = gaussian_delta(delta, "discrete-gaussian")
    sampled = [event for event in listed if event.sampling != "full"]
    if not sampled:
        return epsilon_of(math.sqrt(worst_mu_squared(listed)), delta)
    for event in sampled:
        _check(event)
    if any(event.sampling not in SAMPLED or event.sigma <= 0 for event in sampled):
        return math.inf
    return max(_at_one_position(full, kinds, delta) for full, kinds in _by_position(listed))


def worst_mu_squared(events: Iterable[GaussianRelease]) -> float:
    """Largest, over a silo's positions, of the sum of squared mu of the full-batch events that touch the position.

    One record sits at one position, so replacing it changes only the events that touch it; the Gaussian answers among
    them compose to sum mu^2 (lossless), and the guarantee of the silo is that of its worst position.
    Source: Dong, Roth and Su 2022, Corollary 3.3; parallel composition over pieces fixed by row index only.
    Raises ValueError for an event that this accountant does not know.
    """
    changes: dict[int, list[float]] = {}
    for event in events:
        _check(event)
        if event.sampling != "full":
            raise ValueError(f"no closed form is known for the sampled event {event}")
        changes.setdefault(event.start, []).append(event.gdp_mu_squared)
        changes.setdefault(event.stop, []).append(-event.gdp_mu_squared)
    if any(math.isinf(change) for at in changes.values() for change in at):
        return math.inf
    # fsum over the open intervals anew at each border: no drift from adding and taking away.
    worst, so_far = 0.0, []
    for border in sorted(changes):
        so_far.extend(changes[border])
        worst = max(worst, math.fsum(so_far))
    return worst


def _at_one_position(full: float, kinds: Counter[_Kind], delta: float) -> float:
    if math.isinf(full):
        return math.inf
    curves = [(SAMPLED[kind.sampling](kind.rate, kind.multiplier), count) for kind, count in kinds.items()]
    if full > 0:
        curves.append((gaussian(math.sqrt(full)), 1))
    return epsilon_of_curves(curves, delta)


def _by_position(events: list[GaussianRelease]) -> list[tuple[float, Counter[_Kind]]]:
    """For each stretch between borders that differs from others: mu^2 of its full batches, its sampled answers."""
    borders = sorted({border for event in events for border in (event.start, event.stop)})
    found: dict[tuple[float, frozenset[tuple[_Kind, int]]], tuple[float, Counter[_Kind]]] = {}
    for position in borders[:-1]:
        here = [event for event in events if event.start <= position < event.stop]
        full = math.fsum(event.gdp_mu_squared for event in here if event.sampling == "full")
        kinds: Counter[_Kind] = Counter()
        for event in here:
            if event.sampling != "full":
                kinds[_Kind(event.sampling, event.rate, event.sigma / event.sensitivity)] += event.count
        found[full, frozenset(kinds.items())] = full, kinds
    return list(found.values())


def _check(event: GaussianRelease) -> None:
    known = event.mechanism in _MECHANISMS and event.adjacency == "replace-one"
    known = known and event.sampling in ("full", "with-replacement", *SAMPLED)
    sound = event.stop > event.start and event.count >= 1 and 0 < event.sensitivity < math.inf
    rated = 0 < event.rate <= 1 and (event.sampling != "full" or event.rate == 1)
    if not (known and sound and rated):
        raise ValueError(f"no sound accountant is known here for the event {event}")
