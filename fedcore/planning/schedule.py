"""The schedule of a phase, the silos' shares of records and noise, and rounds of other kinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import gcd

from fedcore.accounting.events import Sampling
from fedcore.planning.problem import Problem
from fedcore.planning.questions import AnyQuestion


@dataclass(frozen=True)
class Schedule:
    """The rounds of a phase and the answers of a silo in each.

    `answers`: of a silo in one round, each with its own sample and noise. `sampling`: how secret samples are drawn,
    where a share's rate is below 1. `fresh_blocks`: each round takes the next block of a silo's range. `at_most_once`:
    a silo that is drawn a second time in the phase does not answer again. `in_turn`: one silo answers in each round, in
    order.
    """

    rounds: int
    answers: int = 1
    sampling: Sampling = "poisson"
    fresh_blocks: bool = False
    at_most_once: bool = False
    in_turn: bool = False


DERIVED = {"derived": True}
"""Metadata of a field that follows from the others: a plan's digest leaves it out.

Accountants use NumPy's transcendental functions, whose last bits depend on the processor's instructions."""


@dataclass(frozen=True)
class Share:
    """One silo's share of one phase.

    `n`: records, at positions [start, start + n) of the silo's split. `batch`: the public divisor of an answer's sum.
    It is n for full batches, or the size of a round's fresh block. For secret samples it is the expected size rate * n,
    which need not be whole. `rate`: probability with which a record of the range takes part in an answer, by its own
    coin; 1: no sampling. `weight`: of the silo's answers in means over silos.
    """

    silo: str
    n: int
    start: int
    batch: float
    sigma: float
    epsilon_accounted: float = field(metadata=DERIVED)
    epsilon_paper: float = field(metadata=DERIVED)
    delta: float
    rate: float = 1.0
    weight: float = 1.0


def weighted(problem: Problem, shares: Sequence[Share]) -> tuple[Share, ...]:
    """Shares of all silos, in the problem's order, with the weights of the problem's silos."""
    if problem.weights is None:
        return tuple(shares)
    pairs = zip(shares, problem.weights, strict=True)
    return tuple(replace(share, weight=weight) for share, weight in pairs)


def unweighted(shares: Sequence[Share]) -> tuple[Share, ...]:
    """Shares with weight 1 each."""
    return tuple(replace(share, weight=1.0) for share in shares)


@dataclass(frozen=True)
class Part:
    """Rounds `first`, `first` + `every`, `first` + 2 `every`, ... with their own question and shares.

    `answers`, `sampling`, `in_turn`: as of `Schedule`. `entrusted`: as of `Noise`.
    """

    first: int
    every: int
    question: AnyQuestion
    shares: tuple[Share, ...] = field(repr=False)
    answers: int = 1
    sampling: Sampling = "poisson"
    in_turn: bool = False
    entrusted: bool = False

    def has(self, round: int) -> bool:
        """True if this round of the phase (from 1) is in the part."""
        return round >= self.first and (round - self.first) % self.every == 0

    def among(self, rounds: int) -> int:
        """Number of the part's rounds among the phase's first `rounds`."""
        return 0 if rounds < self.first else (rounds - self.first) // self.every + 1


def disjoint(parts: Sequence[Part]) -> bool:
    """True if no round is in two of these parts."""
    pairs = [(one, other) for at, one in enumerate(parts) for other in parts[:at]]
    return all((one.first - other.first) % gcd(one.every, other.every) for one, other in pairs)


def turns_of_place(place: int, silos: int, rounds: int) -> int:
    """Count of the numbers 1 .. rounds with remainder `place` modulo `silos` (`Phase.whose_turn`)."""
    return 0 if rounds < place else (rounds - place) // silos + (place > 0)
