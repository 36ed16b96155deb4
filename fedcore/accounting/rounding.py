"""Floating-point slack on sensitivities: rounding's part of a sum's change by one record, for every n.

One replaced record moves the computed sum of n parts by at most 2 C (1 + excess), with

    excess = rho G / C (2 rho G / C if sampled) + e.

rho is the error of the summation tree (`fedcore.summation`), G the largest norm of a part, e the error of clipping. For
Poisson samples the accountant's pair is a sum with and without one record: half of the charge apart, with the same
rounding. For samples of fixed size another record leaves, whose block changes too. Hence the factor 2 in both. Plan and
silo compute the slack from public numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedcore.summation import BLOCK, UNIT, rho

ROUNDING = 1e-6
"""Relative slack on every sensitivity as long as the excess is at most `COVERED`."""
COVERED = 9e-7
"""Largest excess that ROUNDING covers; the rest is for the rounding of the sensitivities themselves."""
OWN = 4
"""Most roundings of a term besides product and additions: weight, factor, sqrt(2) or scale, diagonal."""
CLIPPED = 1e-8
"""e: thousands of units in the last place, far above the rounding of factors and norms."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """Rounding constants of the sums of one kind of answer.

    `reach`: G / C. `clipped`: e. `solver`: p of a function of the sum whose computed value is off by at most p u n G,
    in units of 2 C; 0 for the sum itself. B and k are the largest of any answer, whatever the width of its records: rho
    grows with both.
    """

    reach: float = 1.0
    clipped: float = CLIPPED
    solver: float = 0.0

    def excess(self, terms: int, sampled: bool = False) -> float:
        """Excess of a sum of `terms` terms, those outside a sample included."""
        twice = 2.0 if sampled else 1.0
        return rho(terms, BLOCK, OWN) * self.reach * twice + self.clipped + 2.0 * self.solver * UNIT * terms

    def slack(self, terms: int, sampled: bool = False) -> float:
        """The slack charged for the excess: ROUNDING, or the excess itself where that is larger than COVERED."""
        excess = self.excess(terms, sampled)
        return ROUNDING if excess <= COVERED else excess


CENTRED = Rounding()
"""Parts centred at 0, as clipped gradients are."""
