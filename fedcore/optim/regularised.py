"""The direction of a regularised objective: the terms that the server adds to the mean answer.

Source: spec localized-isrl-dp, 5.2 and 5.3 (clip the loss alone, regularise after aggregation). The regulariser's
gradient depends on no record. So it is never clipped, takes no noise and costs no privacy.
"""

from __future__ import annotations

from fedcore.arrays import Vector
from fedcore.planning.phase import Phase


def regularised(gradient: Vector, w: Vector, centre: Vector, phase: Phase) -> Vector:
    """gradient + lam (w - centre) + ridge w (d,), the gradient at w of the phase's objective.

    `gradient`: the mean message at w. The objective is F(w) + (lam/2) |w - centre|^2 + (ridge/2) |w|^2. `lam` is the
    phase's own weight around its centre, `ridge` the problem's, over all weights with the bias among them.
    """
    direction = gradient + phase.subproblem.lam * (w - centre) if phase.subproblem.lam else gradient
    return direction + phase.subproblem.ridge * w if phase.subproblem.ridge else direction
