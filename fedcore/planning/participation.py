"""Number of silos in a round: fixed, or drawn by a law over 1..N, with the means that theorems use.

Source: Lowy and Razaviyayn 2023, Assumption 3 (spec isrl-dp-fl, sections 2, 4 and 6.9). M_r is independent over rounds.
The M_r silos of a round are uniform among the sets of that size. The theorems take the harmonic mean M of M_r, and M'
by the corrected formula (E2). Privacy ignores the law: noise covers a silo that answers in every round.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass as plain_dataclass
from functools import cached_property
from itertools import accumulate
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag
from pydantic.dataclasses import dataclass

from fedcore.errors import InputError
from fedcore.hyperparameters import DECLARED, Count, Real
from fedcore.randomness import draws

MOST_LISTED = 2**16
"""Numbers in a list, at most."""


@dataclass(frozen=True, config=DECLARED)
class Binomial:
    """M_r of Binomial(N, q), given that it is at least 1: each silo takes part by its own coin."""

    binomial: Annotated[Real, Field(gt=0, le=1)]
    """q, the probability with which a silo takes part."""


def _form(value: Any) -> str:
    if isinstance(value, dict | Binomial):
        return "law"
    return "tuple" if isinstance(value, list | tuple) else "int"


Number = Annotated[Count, Field(ge=1)]
SilosPerRound = Annotated[
    Annotated[Number, Tag("int")]
    | Annotated[tuple[Number, ...], Tag("tuple"), Field(min_length=1, max_length=MOST_LISTED)]
    | Annotated[Binomial, Tag("law")],
    Discriminator(_form),
]
"""M; or a list of numbers on which M_r is uniform, where a repeated number counts twice; or a law by its name."""


@plain_dataclass(frozen=True)
class Participation:
    """The law of M_r, the number of silos in a round, out of `n_silos`.

    `probabilities`: of each possible number, ascending by number; they sum to 1 up to rounding.
    """

    n_silos: int
    probabilities: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, given: SilosPerRound, n_silos: int) -> Participation:
        """Builds the law. Raises InputError for numbers outside 1..N, and for an empty or too long list."""
        if isinstance(given, Binomial):
            return cls(n_silos, tuple(_binomial(n_silos, given.binomial)))
        numbers = (given,) if isinstance(given, int) else given
        if not 0 < len(numbers) <= MOST_LISTED:
            raise InputError(f"{len(numbers)} numbers of participants are no law; 1 to {MOST_LISTED} are")
        for number in numbers:
            if not 0 < number <= n_silos:
                raise InputError(f"{number:g} participants make no problem; 1 to {n_silos} do")
        return cls(n_silos, tuple((m, times / len(numbers)) for m, times in sorted(Counter(numbers).items())))

    @property
    def least(self) -> int:
        return self.probabilities[0][0]

    @property
    def most(self) -> int:
        return self.probabilities[-1][0]

    @property
    def words(self) -> str:
        """The number, or the least and the largest possible number: a law may have tens of thousands."""
        return f"{self.least}" if self.fixed else f"{self.least} to {self.most}"

    @property
    def fixed(self) -> bool:
        """True if every round has the same number of silos."""
        return self.least == self.most

    @property
    def full(self) -> bool:
        """True if every round has all silos."""
        return self.least == self.n_silos

    @cached_property
    def expected(self) -> float:
        """E[M_r], exact for a fixed number. By any law a silo is in a round with probability E[M_r] / N."""
        return self.least if self.fixed else math.fsum(p * m for m, p in self.probabilities)

    @cached_property
    def harmonic(self) -> float:
        """M of the theorems, 1 / E[1 / M_r]: the expected variance of means over M_r silos is that over M."""
        return float(self.least) if self.fixed else 1.0 / math.fsum(p / m for m, p in self.probabilities)

    @cached_property
    def second_harmonic(self) -> float:
        """M' of the theorems for unequal silos, 1 / sqrt(E[1 / M_r^2]) (E2); M' <= M <= E[M_r]."""
        if self.fixed:
            return float(self.least)
        return 1.0 / math.sqrt(math.fsum(p / m**2 for m, p in self.probabilities))

    def drawn(self, key: bytes, phase: int, round: int) -> int:
        """M_r of this round, from public randomness of its own; a fixed number takes no draw."""
        if self.fixed:
            return self.least
        chance = float(draws(key, phase, round, "number of participants").random(1)[0])
        # Rounding may leave the last sum below 1.
        return self.probabilities[min(bisect_right(self._sums, chance), len(self._sums) - 1)][0]

    @cached_property
    def _sums(self) -> tuple[float, ...]:
        return tuple(accumulate(p for _, p in self.probabilities))


def _binomial(n: int, q: float) -> Iterator[tuple[int, float]]:
    """Probabilities of Binomial(n, q) given at least 1, by ratios: the same bits on every machine."""
    if q == 1.0:
        yield n, 1.0
        return
    odds = q / (1.0 - q)
    mode = min(max(math.floor((n + 1) * q), 1), n)
    above, below = {mode: 1.0}, {}
    for m in range(mode, n):
        above[m + 1] = above[m] * ((n - m) / (m + 1)) * odds
        if not above[m + 1] > 0.0:
            break
    weight = 1.0
    for m in range(mode, 1, -1):
        weight *= m / (n - m + 1) / odds
        if not weight > 0.0:
            break
        below[m - 1] = weight
    weights = [*reversed(below.items()), *((m, w) for m, w in above.items() if w > 0.0)]
    total = math.fsum(w for _, w in weights)
    yield from ((m, w / total) for m, w in weights)
