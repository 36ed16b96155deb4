"""What floating point adds to the change of a sum by one record: the slack on every sensitivity, for every n.

A record moves the sum of n parts as computed by at most 2 C (1 + excess), excess = rho G / C (2 if sampled) + e. rho is
that of the tree (`fedcore.summation`), G the largest norm of a part, e the error of the clipping itself. Of samples the
accountant's pair is a sum with and without one record, half of the charge apart while the rounding is the same; of
fixed size, another record leaves, whose block changes too: 2 in both. Plan and silo compute it from public numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedcore.summation import BLOCK, UNIT, rho

ROUNDING = 1e-6
"""Relative slack on every sensitivity as long as the excess is at most `COVERED`."""
COVERED = 9e-7
"""The rest of ROUNDING is for what sensitivities themselves are rounded by."""
OWN = 4
"""Roundings of a term in its block besides product and additions, at most: weight, factor, sqrt(2) or scale, diagonal.
"""
CLIPPED = 1e-8
"""e: far above what factors and norms are rounded by, thousands of units in the last place."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """Of the sums of one kind of answer. `reach`: G / C. `clipped`: e. `solver`: p of a function of the sum whose
    computed value is off by at most p u n G, in units of 2 C; 0 for the sum itself.

    B and k are the largest that any answer has, whatever the width of its records: rho grows with both.
    """

    reach: float = 1.0
    clipped: float = CLIPPED
    solver: float = 0.0

    def excess(self, terms: int, sampled: bool = False) -> float:
        """Of a sum of so many terms, those out of a sample included."""
        twice = 2.0 if sampled else 1.0
        return rho(terms, BLOCK, OWN) * self.reach * twice + self.clipped + 2.0 * self.solver * UNIT * terms

    def slack(self, terms: int, sampled: bool = False) -> float:
        """What is charged for it: ROUNDING, or the excess itself where that is larger than COVERED."""
        excess = self.excess(terms, sampled)
        return ROUNDING if excess <= COVERED else excess


CENTRED = Rounding()
"""Parts centred at 0, as clipped gradients are."""
