"""Which k of d coordinates a silo sends in a round: from public randomness, and never from data.

Huo et al., Definition 3 (spec dp-fcrn 5.4): uniform over all sets of k, fresh for each silo and round, kept coordinates
times d / k. A set that follows from what a silo computed, as the k largest, would reveal it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fedcore.arrays import Vector
from fedcore.randomness import draws, public_key


@lru_cache(maxsize=256)  # silo and server draw the same one, often in one process
def random_mask(seed: int, silo: str, phase: int, round: int, dim: int, kept: int) -> Vector:
    """0 or 1 (d,), 1 in `kept` places; all 1 where all are kept. Not to be written to."""
    mask = np.zeros(dim)
    if kept == dim:
        mask[:] = 1.0
    else:
        chosen = draws(public_key(seed), "mask", silo, phase, round).choice(dim, kept, replace=False)
        mask[chosen] = 1.0
    mask.setflags(write=False)
    return mask


def spread(values: Vector, mask: Vector) -> Vector:
    """An unbiased estimate of a whole vector from what was kept of it: d / k times that, 0 elsewhere (d,)."""
    whole = np.zeros(mask.size)
    whole[mask > 0] = values * (mask.size / values.size)
    return whole
