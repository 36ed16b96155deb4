"""Search for masked cells in arrays and nested lists of a Python caller."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

_DIMENSIONS = 64
"""Most dimensions of a NumPy array."""
_FLAT = (str, bytes, bytearray, memoryview, range)
"""Sequences that hold no arrays."""
_HOLDERS = (Sequence, np.ndarray)


def is_masked(values: Any) -> bool:
    """Checks for a masked cell in arrays and lists: NumPy would read the value below it."""
    level, seen = [values], dict[int, Any]()
    for _ in range(_DIMENSIONS):  # NumPy makes no array of deeper nesting, or of a list that contains itself
        kinds = set(map(type, level))  # cells are many but of few types
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
