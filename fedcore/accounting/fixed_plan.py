"""What runs that were all fixed before the first answer cost a silo together: one plan, by its loss distribution.

Each run splits the records anew, so a record is at one piece of each run, in a combination that nobody knows. A piece
is a vector: mu^2 of its full batches, and how many sampled answers of each kind it has. What costs most is the largest
over combinations; the piece that costs most by itself says nothing, since curves cross (spec sums-and-caps, part C).

Up to `MOST_COMBINATIONS` of them are composed one by one. Beyond, every combination is bounded in three ways, of which
the smallest holds, since none depends on an answer:

    join       a run's largest of each entry, as if one piece had them all
    envelope   h(e) = the largest delta(e) over a run's pieces, at every e; h is convex in exp(e), as each of them is,
               so it is the profile of a pair, which dominates each piece and composes (Zhu, Dong and Wang 2022)
    gdp        a run's largest mu^2, samples counting as all records

For runs that somebody chose after answers of earlier ones none of it holds: filters add those (`filters`).
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
"""Tolerance of a first look, and where there is much to look at."""

Pieces = frozenset[Participation]
"""Of one run, none of them at most another in every entry."""
Choice = tuple[Sequence[Participation], int]
"""The pieces of so many runs of one plan, each of which has a record at one of them."""


def fixed_plan(
    runs: Iterable[Iterable[GaussianRelease]], delta: float, tolerance: float = TOLERANCE, envelope: bool = True
) -> float:
    """An epsilon >= 0 (nats) at `delta` for all of these runs at one silo together, an upper bound.

    Exact, but for the grid, up to `MOST_COMBINATIONS` combinations of pieces; for full batches always. `tolerance`: of
    the grid, as for `epsilon_of_curves`. `envelope`: whether that bound is looked for, which takes seconds. Infinite if
    an answer had no noise, or its sampling has no accountant here that is known to be sound.
    Raises ValueError for an event that is malformed or unknown, or unless 0 < delta < 1.
    """
    pieces, discrete = Counter[Pieces](), False
    for run in runs:
        events = list(run)
        for event in events:
            check_event(event)
        if any(not event.sigma > 0 or event.sampling not in ("full", *SAMPLED) for event in events):
            return math.inf
        discrete = discrete or any(event.mechanism != "gaussian" for event in events)
        pieces[_undominated(by_position(events))] += 1
    left = gaussian_delta(delta, "discrete-gaussian") if discrete else delta
    return _epsilon(frozenset(pieces.items()), left, tolerance, envelope)


@lru_cache(maxsize=1024)  # silos of one size, and the sentences that are told of a sweep, ask the same question
def _epsilon(runs: frozenset[tuple[Pieces, int]], delta: float, tolerance: float, envelope: bool) -> float:
    # In a fixed order: a sum of floats depends on it.
    ordered = sorted(runs, key=lambda run: (sorted(map(_ordered, run[0])), run[1]))
    certain = _total((piece, count) for pieces, count in ordered if len(pieces) == 1 for piece in pieces)
    several = [(sorted(pieces, key=_ordered), count) for pieces, count in ordered if len(pieces) > 1]
    number = math.prod(math.comb(count + len(pieces) - 1, count) for pieces, count in several)
    if number <= MOST_COMBINATIONS:
        return _largest(_combined(certain, several), delta, tolerance)
    joined = _total([(certain, 1), *((_join(pieces), count) for pieces, count in several)])
    gdp = [_mu_squared(certain), *(count * max(map(_mu_squared, pieces)) for pieces, count in several)]
    return min(
        at_one_position(*joined, delta, tolerance),
        epsilon_of(math.sqrt(math.fsum(gdp)), delta),
        _enveloped(certain, several, delta, tolerance) if envelope else math.inf,
    )


def _combined(certain: Participation, several: Sequence[Choice]) -> Pieces:
    """Every combination of one piece of each run, together with what is certain, but for dominated ones."""
    combined = [certain]
    for pieces, count in several:
        chosen = [_total((piece, 1) for piece in some) for some in combinations_with_replacement(pieces, count)]
        combined = [_total([(before, 1), (more, 1)]) for before in combined for more in chosen]
    return _undominated(combined)


def _largest(combined: Pieces, delta: float, tolerance: float) -> float:
    """The largest epsilon of any combination. Bounds on a coarse grid tell which ones need a finer one."""
    if len(combined) == 1:
        return max(at_one_position(*piece, delta, tolerance) for piece in combined)
    coarse = sorted(
        ((at_one_position(*piece, delta, COARSE), _ordered(piece), piece) for piece in combined), reverse=True
    )
    found = 0.0
    for bound, _, piece in coarse:
        if bound <= found:
            break
        found = max(found, bound if tolerance >= COARSE else at_one_position(*piece, delta, tolerance))
    return found


def _enveloped(certain: Participation, several: Sequence[Choice], delta: float, tolerance: float) -> float:
    answers = sum(count for _, count in several) + sum(count for _, count in certain[1]) + 1
    least = SHARE * delta / (2 * answers)
    curves = [Answers(_envelope(pieces, least), count) for pieces, count in several]
    return epsilon_of_curves(curves_of(*certain) + curves, delta, tolerance)


def _envelope(pieces: Sequence[Participation], least: float) -> Curve:
    """The largest of the pieces' curves at every epsilon; each is close to its piece's where delta is above `least`."""
    parts = [curves_of(*piece) for piece in pieces]
    curves = [part[0].curve if [one.most for one in part] == [1] else composed_curve(part, least) for part in parts]

    def largest(epsilon: Vector) -> Vector:
        return np.asarray(np.max([curve(epsilon) for curve in curves], axis=0))

    return largest


def _total(pieces: Iterable[tuple[Participation, int]]) -> Participation:
    """The sum of so many of each piece."""
    counts, mu_squared = Counter[Kind](), list[float]()
    for (full, kinds), times in pieces:
        mu_squared.append(times * full)
        for kind, count in kinds:
            counts[kind] += times * count
    return math.fsum(mu_squared), frozenset(counts.items())


def _join(pieces: Sequence[Participation]) -> Participation:
    """The largest of each entry."""
    counts = Counter[Kind]()
    for _, kinds in pieces:
        counts |= Counter(dict(kinds))
    return max(full for full, _ in pieces), frozenset(counts.items())


def _ordered(piece: Participation) -> tuple[float, list[tuple[Kind, int]]]:
    return piece[0], sorted(piece[1])


def _mu_squared(piece: Participation) -> float:
    full, kinds = piece
    return math.fsum([full, *(count / kind.multiplier**2 for kind, count in kinds)])


def _undominated(pieces: Iterable[Participation]) -> Pieces:
    """The pieces that are not at most another in every entry."""
    kept: list[tuple[float, dict[Kind, int], Participation]] = []
    # What dominates another comes before it: its mu^2 and its answers are no less.
    for piece in sorted(set(pieces), key=lambda one: (-one[0], -sum(count for _, count in one[1]))):
        full, counts = piece[0], dict(piece[1])
        if not any(
            full <= most and all(count <= other.get(kind, 0) for kind, count in counts.items())
            for most, other, _ in kept
        ):
            kept.append((full, counts, piece))
    return frozenset(piece for _, _, piece in kept)
