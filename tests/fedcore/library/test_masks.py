"""Masked cells in arrays and lists of any depth, and how they are looked for."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import pytest

from fedcore.library.masks import is_masked

ITSELF: list[object] = [1.0]
ITSELF.append(ITSELF)
TWICE: list[object] = []
TWICE += [TWICE, TWICE]
HELD = np.empty(2, dtype=object)
HELD[0], HELD[1] = HELD, [np.ma.masked]


class Made(Sequence):
    """Computes its rows again at each access, so that none stays in memory."""

    def __len__(self):
        return 50

    def __getitem__(self, place):
        if place >= 50:
            raise IndexError(place)
        return [1.0, np.ma.masked if place == 49 else 2.0]


@pytest.mark.parametrize(
    ("values", "masked"),
    [
        (np.ma.masked, True),
        ([[1.0, np.ma.masked]], True),
        (np.ma.masked_array([1, 2], [0, 1]), True),
        (np.ma.masked_array([1, 2], [0, 0]), False),
        ([ITSELF, [np.ma.masked]], True),
        (HELD, True),
        (Made(), True),
        (np.array([[1.0, np.ma.masked]] * 3, dtype=object), True),
        (([[[[(np.ma.masked,)]]]],), True),
        (np.array([None, np.ma.masked_array([1], [1])], dtype=object), True),
        (ITSELF, False),
        (TWICE, False),
        (memoryview(np.ones((3, 2))), False),
        ([memoryview(np.ones((3, 2)))], False),
        ("masked", False),
        (["a"], False),
        (range(3), False),
        ([], False),
        ({"a": np.ma.masked}, False),
        (3.0, False),
    ],
)
def test_a_mask_is_found_at_any_depth_and_none_where_there_is_none(values, masked):
    assert is_masked(values) is masked


def test_of_many_cells_only_the_types_are_looked_at():
    """No function of Python is called for each of them."""
    cells, calls = np.ones((5000, 2), dtype=object), 0

    def count(frame, event, _):
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        found = is_masked(cells)
    finally:
        sys.setprofile(None)
    assert not found and calls < 100
