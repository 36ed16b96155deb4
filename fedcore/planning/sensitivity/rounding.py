"""What rounding adds to the sums of each kind of answer, by the answer's name (`fedcore.accounting.rounding`).

A table, since plans know answers by name only: silos hold it against the answers' own numbers before they agree.
"""

from __future__ import annotations

import math

from fedcore.accounting.rounding import CENTRED, CLIPPED, Rounding
from fedcore.planning.curvature import SOLVER
from fedcore.planning.sensitivity import column_moments, moments

DIFFERENCES = 2.1e-7
"""e of differences: what `fedcore.models.network_difference` lets rounding come to where two products cancel."""

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
"""Of an answer that is in no list: no part is centred worse than one that is never negative."""


def rounding_of(answer: str) -> Rounding:
    """Of the answers of this name, as far as the name decides it (`Question.rounding`)."""
    return _OF_ANSWERS.get(answer, _LONGEST)
