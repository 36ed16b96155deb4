"""What rounding adds to the sums of each kind of answer, by the answer's name (`fedcore.accounting.rounding`).

A table, since plans know answers by name only: silos hold it against the answers' own numbers before they agree.
"""

from __future__ import annotations

import math

from fedcore.accounting.rounding import CENTRED, CLIPPED, Rounding
from fedcore.planning.curvature import SOLVER
from fedcore.planning.sensitivity import column_moments, moments, second_order

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


def rounding_of(answer: str, balance: float | None = None) -> Rounding:
    """Of the answers of this name; `balance`: of those of gradients and Hessians, which are as far apart as it says."""
    if answer == "gradient-and-hessian" and balance is not None:
        longest = second_order.largest_norm(1.0, balance)
        return Rounding(longest / second_order.half_diameter(1.0, balance))
    return _OF_ANSWERS.get(answer, _LONGEST)
