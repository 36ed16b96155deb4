"""Rounding in the sums of each kind of answer, by its name (`fedcore.accounting.rounding`).

It is a table because plans know answers by name only. Silos compare it with the answers' own numbers before they agree.
"""

from __future__ import annotations

import math

from fedcore.accounting.rounding import CENTRED, CLIPPED, Rounding
from fedcore.planning.curvature import SOLVER
from fedcore.planning.sensitivity import column_moments, moments

DIFFERENCES = 2.1e-7
"""e of differences: the bound of `fedcore.models.network_difference` on rounding where two products cancel."""

_OF_ANSWERS = {
    "gradient": CENTRED,
    "gradient-difference": Rounding(clipped=DIFFERENCES + CLIPPED),
    "gradient-and-hessian-vector": CENTRED,
    "moments": Rounding(moments.largest_norm(1.0) / moments.half_diameter(1.0)),
    "column-moments": Rounding(column_moments.largest_norm(1.0) / column_moments.half_diameter(1.0)),
    "histogram": Rounding(math.sqrt(2.0)),
    "largest-eigenvalue": Rounding(2.0, solver=SOLVER),
}
_LONGEST = Rounding(2.0, clipped=DIFFERENCES + CLIPPED)
"""Rounding of an answer outside the table, the worst case: a part that is never negative is centred worst."""


def rounding_of(answer: str) -> Rounding:
    """Rounding of the answers of this name, as far as the name decides it (`Question.rounding`)."""
    return _OF_ANSWERS.get(answer, _LONGEST)
