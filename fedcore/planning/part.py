"""What a silo gives to the rounds of a phase, and rounds of a phase that ask something else than its others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any

from fedcore.accounting.events import Sampling


@dataclass(frozen=True)
class Share:
    """One silo's part of one phase: which of its positions are used, and with how much noise.

    `n`: records of the piece, at positions [start, start + n) of the silo's split. `batch`: the public number that an
    answer's sum is divided by: n (full batch in every round), the size of a round's fresh block, or the expected number
    of records of a secret sample, rate * n, which need not be whole. `rate`: probability with which a record of the
    piece takes part in an answer, by its own coin; 1: no sampling.
    """

    silo: str
    n: int
    start: int
    batch: float
    sigma: float
    epsilon_accounted: float
    epsilon_paper: float
    delta: float
    rate: float = 1.0


@dataclass(frozen=True)
class Part:
    """Rounds `first`, `first` + `every`, `first` + 2 `every`, ... of a phase, with those fields of `Phase` that differ
    there; `in_turn` and `entrusted` are said of each part for itself."""

    first: int
    every: int
    answer: str
    clip: float
    shares: tuple[Share, ...] = field(repr=False)
    sampling: Sampling = "poisson"
    answers: int = 1
    vectors_down: int = 1
    vectors_up: int | None = None
    in_turn: bool | None = None
    entrusted: bool | None = None
    numbers: int | None = None
    balance: float | None = None

    def has(self, round: int) -> bool:
        """Whether this round of the phase (from 1) is one of the part's."""
        return round >= self.first and (round - self.first) % self.every == 0

    def among(self, rounds: int) -> int:
        """How many of the first so many rounds of the phase are the part's."""
        return 0 if rounds < self.first else (rounds - self.first) // self.every + 1


def totals(shares: Sequence[Share]) -> dict[str, Any]:
    """What rounds say of themselves by the names of `Phase`: numbers of the smallest silo, or the largest of any."""
    return {
        "n": min(share.n for share in shares),
        "batch": min(share.batch for share in shares),
        "sigma": max(share.sigma for share in shares),
        "rate": max(share.rate for share in shares),
    } | epsilons(shares)


def epsilons(shares: Sequence[Share]) -> dict[str, Any]:
    """The largest of any silo, by the names of `Phase`."""
    return {
        "epsilon_accounted": max(share.epsilon_accounted for share in shares),
        "epsilon_paper": max(share.epsilon_paper for share in shares),
    }


def disjoint(parts: Sequence[Part]) -> bool:
    """Whether no round is in two of these parts."""
    pairs = [(one, other) for at, one in enumerate(parts) for other in parts[:at]]
    return all((one.first - other.first) % gcd(one.every, other.every) for one, other in pairs)
