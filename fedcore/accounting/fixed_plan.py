"""Epsilon of several runs at one silo that were all fixed before the first answer.

Each run splits the records anew, so a record sits in one shard of each run, in an unknown combination. A shard is a
vector: mu^2 of its full batches, and the number of its sampled answers of each kind. The cost is the largest over
combinations. A combination of the most expensive shards need not be the largest, since curves cross (spec
sums-and-caps, part C).

Up to `MOST_COMBINATIONS` combinations are composed one by one. More are bounded in three ways, and the smallest bound
holds, since none depends on an answer:

- join: a run's largest of each entry, as if one shard had them all.
- envelope: h(e) = the largest delta(e) over a run's shards, at every e. h is convex in exp(e), as each shard's curve
  is. It is therefore the profile of a pair, which dominates each shard and composes (Zhu, Dong and Wang 2022).
- gdp: a run's largest mu^2, samples counting as all records.

None of this holds for runs that were chosen after answers of earlier ones: `filters` adds those.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import combinations_with_replacement

import numpy as np

from fedcore.accounting.composition import Kind, Participation, at_one_position, by_position, check_event, curves_of
from fedcore.accounting.events import GaussianRelease, gaussian_delta
from fedcore.accounting.gaussian import epsilon_of
from fedcore.accounting.loss_distributions.discrete_losses import Answers
from fedcore.accounting.loss_distributions.loss_curves import SAMPLED, Curve
from fedcore.accounting.loss_distributions.loss_distribution import SHARE, TOLERANCE, composed_curve, epsilon_of_curves
from fedcore.arrays import Vector

MOST_COMBINATIONS = 64
COARSE = 2e-2
"""Tolerance of a first look, and of the only look where there are many combinations."""

Shards = frozenset[Participation]
"""Undominated shards of one run: none is at most another in every entry."""
Choice = tuple[Sequence[Participation], int]
"""The shards of one plan and the number of its runs; each run has a record in one of the shards."""


def fixed_plan(
    runs: Iterable[Iterable[GaussianRelease]], delta: float, tolerance: float = TOLERANCE, envelope: bool = True
) -> float:
    """An upper bound on epsilon >= 0 (nats) at `delta` for all of these runs at one silo.

    Exact up to the grid for at most `MOST_COMBINATIONS` combinations of shards, and for full batches always.
    `tolerance`: of the grid, as for `epsilon_of_curves`. `envelope`: computes that bound too, which takes seconds.
    Infinite if an answer had no noise, or its sampling has no sound accountant here.
    Raises ValueError for an event that is malformed or unknown, or unless 0 < delta < 1.
    """
    shards, discrete = Counter[Shards](), False
    for run in runs:
        events = list(run)
        for event in events:
            check_event(event)
        if any(not event.sigma > 0 or event.sampling not in ("full", *SAMPLED) for event in events):
            return math.inf
        discrete = discrete or any(event.mechanism != "gaussian" for event in events)
        shards[_undominated(by_position(events))] += 1
    left = gaussian_delta(delta, "discrete-gaussian") if discrete else delta
    return _epsilon(frozenset(shards.items()), left, tolerance, envelope)


@lru_cache(maxsize=1024)  # silos of one size, and the reports of a sweep, repeat the same question
def _epsilon(runs: frozenset[tuple[Shards, int]], delta: float, tolerance: float, envelope: bool) -> float:
    # In a fixed order: a sum of floats depends on it.
    ordered = sorted(runs, key=lambda run: (sorted(map(_ordered, run[0])), run[1]))
    certain = _total((shard, count) for shards, count in ordered if len(shards) == 1 for shard in shards)
    several = [(sorted(shards, key=_ordered), count) for shards, count in ordered if len(shards) > 1]
    number = math.prod(math.comb(count + len(shards) - 1, count) for shards, count in several)
    if number <= MOST_COMBINATIONS:
        return _largest(_combined(certain, several), delta, tolerance)
    joined = _total([(certain, 1), *((_join(shards), count) for shards, count in several)])
    gdp = [_mu_squared(certain), *(count * max(map(_mu_squared, shards)) for shards, count in several)]
    return min(
        at_one_position(*joined, delta, tolerance),
        epsilon_of(math.sqrt(math.fsum(gdp)), delta),
        _enveloped(certain, several, delta, tolerance) if envelope else math.inf,
    )


def _combined(certain: Participation, several: Sequence[Choice]) -> Shards:
    """Every undominated combination of one shard of each run, plus the participation that is certain."""
    combined = [certain]
    for shards, count in several:
        chosen = [_total((shard, 1) for shard in some) for some in combinations_with_replacement(shards, count)]
        combined = [_total([(before, 1), (more, 1)]) for before in combined for more in chosen]
    return _undominated(combined)


def _largest(combined: Shards, delta: float, tolerance: float) -> float:
    """The largest epsilon of any combination; bounds on a coarse grid select those that need a finer one."""
    if len(combined) == 1:
        return max(at_one_position(*shard, delta, tolerance) for shard in combined)
    coarse = sorted(
        ((at_one_position(*shard, delta, COARSE), _ordered(shard), shard) for shard in combined), reverse=True
    )
    found = 0.0
    for bound, _, shard in coarse:
        if bound <= found:
            break
        found = max(found, bound if tolerance >= COARSE else at_one_position(*shard, delta, tolerance))
    return found


def _enveloped(certain: Participation, several: Sequence[Choice], delta: float, tolerance: float) -> float:
    answers = sum(count for _, count in several) + sum(count for _, count in certain[1]) + 1
    least = SHARE * delta / (2 * answers)
    curves = [Answers(_envelope(shards, least), count) for shards, count in several]
    return epsilon_of_curves(curves_of(*certain) + curves, delta, tolerance)


def _envelope(shards: Sequence[Participation], least: float) -> Curve:
    """Pointwise maximum of the shards' curves; each is close to its shard's where delta is above `least`."""
    parts = [curves_of(*shard) for shard in shards]
    curves = [part[0].curve if [one.most for one in part] == [1] else composed_curve(part, least) for part in parts]

    def largest(epsilon: Vector) -> Vector:
        return np.asarray(np.max([curve(epsilon) for curve in curves], axis=0))

    return largest


def _total(shards: Iterable[tuple[Participation, int]]) -> Participation:
    """The sum of the shards, each times its number."""
    counts, mu_squared = Counter[Kind](), list[float]()
    for (full, kinds), times in shards:
        mu_squared.append(times * full)
        for kind, count in kinds:
            counts[kind] += times * count
    return math.fsum(mu_squared), frozenset(counts.items())


def _join(shards: Sequence[Participation]) -> Participation:
    """The entrywise maximum of the shards."""
    counts = Counter[Kind]()
    for _, kinds in shards:
        counts |= Counter(dict(kinds))
    return max(full for full, _ in shards), frozenset(counts.items())


def _ordered(shard: Participation) -> tuple[float, list[tuple[Kind, int]]]:
    return shard[0], sorted(shard[1])


def _mu_squared(shard: Participation) -> float:
    full, kinds = shard
    return math.fsum([full, *(count / kind.multiplier**2 for kind, count in kinds)])


def _undominated(shards: Iterable[Participation]) -> Shards:
    """The shards that are not at most another in every entry."""
    found: list[tuple[float, dict[Kind, int], Participation]] = []
    # A shard that dominates another comes before it: its mu^2 and its answers are no less.
    for shard in sorted(set(shards), key=lambda one: (-one[0], -sum(count for _, count in one[1]))):
        full, counts = shard[0], dict(shard[1])
        if not any(
            full <= most and all(count <= other.get(kind, 0) for kind, count in counts.items())
            for most, other, _ in found
        ):
            found.append((full, counts, shard))
    return frozenset(shard for _, _, shard in found)
