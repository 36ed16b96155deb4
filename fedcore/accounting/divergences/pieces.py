"""Pieces of a run's charge: for each stretch of positions, its answers about samples, by kind.

A record sits at one position, and its charge is a function of the answers that touch it alone. At one order divergences
are numbers, so the run costs the largest over positions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from fedcore.accounting.composition import by_position, check_event
from fedcore.accounting.divergences import renyi
from fedcore.accounting.events import GaussianRelease, is_number, is_whole
from fedcore.accounting.loss_distributions.loss_curves import SAMPLED

MOST_PIECES = 64
"""Most pieces of a charge; more are replaced by one that is above them all."""
MOST_KINDS = 2048
"""Most kinds over all pieces of a run; beyond it samples are charged as all records."""


@dataclass(frozen=True, order=True)
class Kind:
    """`count` answers about secret samples of one kind; `multiplier`: noise over sensitivity.

    Raises ValueError for values that no event here has.
    """

    sampling: str
    rate: float
    multiplier: float
    count: int

    def __post_init__(self) -> None:
        numbers = all(is_number(each) for each in (self.rate, self.multiplier))
        sound = numbers and 0 < self.rate <= 1 and 0 < self.multiplier < math.inf
        whole = is_whole(self.count) and self.count >= 1
        if not (isinstance(self.sampling, str) and self.sampling in SAMPLED and sound and whole):
            raise ValueError(f"no answers about samples are {self}")


@dataclass(frozen=True, order=True)
class Piece:
    """Answers that touch one stretch of positions: mu^2 of the full batches, and kinds of samples.

    Raises ValueError for a parameter that is negative or no number, and for a repeated kind.
    """

    mu_squared: float
    kinds: tuple[Kind, ...]

    def __post_init__(self) -> None:
        named = {(kind.sampling, kind.rate, kind.multiplier) for kind in self.kinds}
        if not (is_number(self.mu_squared) and self.mu_squared >= 0 and len(named) == len(self.kinds)):
            raise ValueError(f"no answers together are {self}")

    def divergence(self, order: float) -> float:
        """Renyi divergence of this order of all of the piece's answers, rounded up."""
        of_samples = (
            kind.count * renyi.sampled(order, kind.sampling, kind.rate, kind.multiplier) for kind in self.kinds
        )
        return math.fsum((renyi.full(order, self.mu_squared), *of_samples)) * (1 + 2.0**-50)

    def below(self, other: Piece) -> bool:
        """True if the other piece has at least as much of every entry."""
        theirs = other.counts
        return self.mu_squared <= other.mu_squared and all(
            count <= theirs.get(named, 0) for named, count in self.counts.items()
        )

    @property
    def counts(self) -> dict[tuple[str, float, float], int]:
        """Number of answers of each kind (sampling, rate, multiplier)."""
        return {(kind.sampling, kind.rate, kind.multiplier): kind.count for kind in self.kinds}


def pieces_of(events: Iterable[GaussianRelease]) -> tuple[Piece, ...]:
    """The pieces of one run's events, without those that another one covers; in a fixed order.

    Empty if no answer was about a sample or one had no noise: mu^2 is then exact. Empty also if there are too many
    kinds: mu^2 is then a bound. Raises ValueError for an event that is malformed or has no bound.
    """
    counted = [replace(event, count=event.count * times) for event, times in Counter(events).items()]
    for event in counted:
        check_event(event)
        if event.sampling != "full" and event.sampling not in SAMPLED:
            raise ValueError(f"no bound is known for the sampled event {event}")
    if all(event.sampling == "full" for event in counted) or any(not event.sigma > 0 for event in counted):
        return ()
    found = {
        _piece(full * (1 + 2.0**-50), {(of.sampling, of.rate, of.multiplier): count for of, count in kinds})
        for full, kinds in by_position(counted)
    }
    largest: list[Piece] = []
    for piece in sorted(found, reverse=True):
        if not any(piece.below(other) for other in found if other != piece):
            largest.append(piece)
        if len(largest) > MOST_PIECES:
            largest = [_above(found)]
            break
    if sum(len(piece.kinds) for piece in largest) > MOST_KINDS:
        return ()
    return tuple(sorted(largest))


def divergence(pieces: Iterable[Piece], order: float) -> float:
    """The largest divergence of the pieces, whose positions are disjoint."""
    return max((piece.divergence(order) for piece in pieces), default=0.0)


def pieces_json(pieces: Iterable[Piece]) -> list[Any]:
    """The pieces as lists: [mu^2 of the full batches, [[sampling, rate, multiplier, count], ..]] of each."""
    return [
        [each.mu_squared, [[kind.sampling, kind.rate, kind.multiplier, kind.count] for kind in each.kinds]]
        for each in pieces
    ]


def pieces_from(listed: Any) -> tuple[Piece, ...]:
    """The pieces that `pieces_json` made. Raises ValueError or TypeError for anything else."""
    return tuple(Piece(full, tuple(Kind(*kind) for kind in kinds)) for full, kinds in listed)


def _piece(mu_squared: float, counts: dict[tuple[str, float, float], int]) -> Piece:
    return Piece(mu_squared, tuple(sorted(Kind(*named, count) for named, count in counts.items())))


def _above(found: Iterable[Piece]) -> Piece:
    """One piece with the most of each entry."""
    most, full = Counter[tuple[str, float, float]](), 0.0
    for piece in found:
        full = max(full, piece.mu_squared)
        most |= Counter(piece.counts)
    return _piece(full, most)
