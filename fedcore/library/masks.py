"""Masked cells, wherever they lie in what a Python caller gives as an array."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

_DIMENSIONS = 64
"""The most that an array can have."""
_FLAT = (str, bytes, bytearray, memoryview, range)
"""Sequences that hold no arrays."""
_HOLDERS = (Sequence, np.ndarray)


def is_masked(values: Any) -> bool:
    """Whether something is masked, in an array or in what lists hold: NumPy would take what lies below the mask."""
    level, seen = [values], dict[int, Any]()
    for _ in range(_DIMENSIONS):  # below, and in what holds itself, NumPy finds no array
        kinds = set(map(type, level))  # cells are many, and of few types
        if any(issubclass(kind, np.ma.MaskedArray) for kind in kinds) and any(map(_has_a_mask, level)):
            return True
        holders = {kind for kind in kinds if issubclass(kind, _HOLDERS) and not issubclass(kind, _FLAT)}
        found = {id(each): each for each in level if type(each) in holders} if holders else {}
        level = list(chain.from_iterable(_held(each) for key, each in found.items() if key not in seen))
        if not level:
            break
        seen |= found
    return False


def _has_a_mask(value: Any) -> bool:
    return isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value)


def _held(values: Any) -> Iterable[Any]:
    if not isinstance(values, np.ndarray):
        return values
    return np.asarray(values).ravel().tolist() if values.dtype == object else ()
