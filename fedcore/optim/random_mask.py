"""Mask of the k of d coordinates that a silo sends in a round, from public randomness alone.

Huo et al., Definition 3 (spec dp-fcrn 5.4): uniform over all sets of k, fresh for each silo and round. Sent coordinates
are multiplied by d / k. A set that follows from the silo's computation, as the k largest, would reveal it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fedcore.arrays import Vector
from fedcore.randomness import draws, public_key


@lru_cache(maxsize=256)  # silo and server draw the same mask, often in one process
def random_mask(seed: int, silo: str, phase: int, round: int, dim: int, count: int) -> Vector:
    """0 or 1 (d,), 1 in `count` places; all 1 where `count` is d. Read-only."""
    mask = np.zeros(dim)
    if count == dim:
        mask[:] = 1.0
    else:
        chosen = draws(public_key(seed), "mask", silo, phase, round).choice(dim, count, replace=False)
        mask[chosen] = 1.0
    mask.setflags(write=False)
    return mask


def spread(values: Vector, mask: Vector) -> Vector:
    """An unbiased estimate of a whole vector from its masked part: d / k times that, 0 elsewhere (d,)."""
    whole = np.zeros(mask.size)
    whole[mask > 0] = values * (mask.size / values.size)
    return whole
