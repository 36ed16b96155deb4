"""NOT PRIVATE: losses on the records of a site's silos, for metrics under `simulation/` only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedcore.arrays import Vector
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.refusal import with_public_errors


def simulated_losses(silos: Sequence[PrivateSilo], run: str, w: Vector) -> list[tuple[int, float, float]]:
    """(records, sum of losses, wrong classes) per silo for the model w (d,) of an approved run.

    A person counts once, with the means over its rows, as in training. Raises SiloError for a guarded silo.
    """
    found = [with_public_errors(silo.name, silo.simulated, run) for silo in silos]
    each = with_public_errors(silos[0].name, found[0][0].evaluate_parts, w, [(X, y) for _, X, y, _ in found])
    return [
        _counted(silo.n, losses, wrong, weights)
        for silo, (*_, weights), (losses, wrong) in zip(silos, found, each, strict=True)
    ]


def _counted(
    n: int, losses: np.ndarray, wrong: np.ndarray | None, weights: np.ndarray | None
) -> tuple[int, float, float]:
    """(n, sum of losses, wrong classes) of n records, or of n persons with weighted rows."""
    if weights is None:
        return n, float(np.add.reduce(losses)), 0 if wrong is None else int(np.count_nonzero(wrong))
    return n, float(weights @ losses), 0.0 if wrong is None else float(weights @ wrong)
