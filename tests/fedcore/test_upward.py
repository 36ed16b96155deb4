"""What is shown of a guarantee is never below it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.upward import EXACT, rounded_up


@pytest.mark.parametrize(
    "value, digits, shown",
    [
        (2.03001, 4, "2.031"), (2.03, 4, "2.03"), (0.99999, 4, "1"), (1.00001, 4, "1.001"), (12.90631, 6, "12.9064"),
        (0.00033062, 3, "0.000331"), (123456.0, 4, "1.235e+05"), (0.0, 4, "0"), (math.inf, 4, "inf"),
        (2 * (1 + 1e-12), 4, "2"), (2 * (1 + 1e-8), 4, "2.001"), (3.0000000000000004e-12, 3, "3e-12"),
    ],
)  # fmt: skip
def test_by_hand(value, digits, shown):
    assert rounded_up(value, digits) == shown


@given(st.floats(1e-300, 1e300), st.integers(1, 9))
def test_it_is_not_below_and_at_most_one_unit_of_its_last_digit_above(value, digits):
    shown = float(rounded_up(value, digits))
    assert shown >= value * (1 - EXACT)
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    assert shown <= value + unit * (1 + 1e-9)
