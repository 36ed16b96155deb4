"""A shown guarantee never promises more than the computed one: by hand, by fractions, for all floats."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.directed_rounding import in_full, number_up, shown_down, shown_up


@pytest.mark.parametrize(
    "value, up, down",
    [
        (4.92601, "4.927", "4.926"),
        (50.7004, "50.71", "50.7"),
        (0.99999, "1", "0.9999"),
        (0.1, "0.1", "0.1"),
        (1.0000000000000002, "1.001", "1"),
        (2.03, "2.03", "2.03"),
        (2 * (1 + 1e-12), "2.001", "2"),
        (2 * (1 - 1e-12), "2", "1.999"),
        (123456.0, "1.235e+05", "1.234e+05"),
        (99999.0, "1e+05", "9.999e+04"),
        (0.00009999, "9.999e-05", "9.999e-05"),
        (0.000099991, "0.0001", "9.999e-05"),
        (0.0, "0", "0"),
        (-0.12344999, "-0.1234", "-0.1235"),
        (math.inf, "inf", "inf"),
        (5e-324, "5e-324", "5e-324"),
        (None, "-", "-"),
        (7, "7", "7"),
        (np.float64(4.92601), "4.927", "4.926"),
        (3e-12, "3e-12", "3e-12"),
    ],
)
def test_by_hand(value, up, down):
    assert (shown_up(value), shown_down(value)) == (up, down)


def test_every_one_over_n_squared_is_shown_no_smaller():
    """Nearest, of old, is below it for 981 of 1,950 sizes."""
    nearest = sum(Fraction(f"{1 / n**2:.3g}") < Fraction(1, n**2) for n in range(51, 2001))
    assert nearest == 981
    assert all(Fraction(shown_up(1 / n**2, 3)) >= Fraction(1, n**2) for n in range(51, 2001))
    assert shown_up(1 / 51**2, 3) == "0.000385"


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 15))
def test_of_any_float_the_two_enclose_it_within_one_unit_of_the_last_digit(value, digits):
    up, down = shown_up(value, digits), shown_down(value, digits)
    assert float(up) >= value >= float(down)
    text, above, below = Fraction(repr(value)), Fraction(up), Fraction(down)
    assert above >= text >= below
    if text == 0:
        assert up == down == "0"
        return
    unit = Fraction(10) ** (len(str(abs(text.numerator))) - len(str(abs(text.denominator))) - digits + 2)
    assert above - below <= unit
    for shown in (up, down):  # no more digits than were asked for
        assert len(shown.partition("e")[0].lstrip("-").replace(".", "").strip("0")) <= digits
        assert shown_up(float(shown), 15) == shown_down(float(shown), 15) or abs(value) < 1e-300 or abs(value) > 1e308


@given(st.floats(1e-300, 1e300), st.integers(1, 15))
def test_what_is_shown_shows_as_itself(value, digits):
    for shown in (shown_up(value, digits), shown_down(value, digits)):
        assert shown_up(float(shown), digits) == shown_down(float(shown), digits) == shown


def test_a_number_that_is_none_is_refused_and_so_are_digits_that_no_float_has():
    for shown in (shown_up, shown_down, number_up):
        with pytest.raises(ValueError, match="NaN"):
            shown(math.nan)
        for digits in (0, 16):
            with pytest.raises(ValueError, match="digits"):
                shown(1.0, digits)


@pytest.mark.parametrize(
    "value, text",
    [
        (2.0, "2"),
        (3.99999999, "3.99999999"),
        (1e-5, "1e-05"),
        (0.1, "0.1"),
        (10000, "10000"),
        (1 / 3, repr(1 / 3)),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (None, "-"),
    ],
)
def test_what_was_typed_is_shown_as_typed(value, text):
    assert in_full(value) == text


def test_a_number_is_that_of_the_text():
    assert number_up(4.92601) == 4.927 and number_up(2.0) == 2.0 and number_up(3.999999999) == 4.0
