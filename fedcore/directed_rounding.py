"""How privacy's numbers are shown: rounded in the direction in which they promise no more than what was computed.

| `shown_up` | `shown_down` |
|---|---|
| epsilon spent or asked for, delta, mu, sampling rate | what is left, room, lower bounds, what a range ends with |
| noise that is to be applied | noise that was applied: who recomputes epsilon from it gets no less |

What a person typed is shown `in_full`, as are numbers for which neither direction is right. No other formatting of
these quantities exists in `fedcore`, `tasks` and `flows` (`tests/docs/test_shown_numbers.py`). All three return text:
nothing rounds again what is rounded.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

NONE = "-"
"""Stands for what is not there."""
_MOST_DIGITS = 15
"""Decimals of so many digits are told apart by their floats."""


def shown_up(value: float | None, digits: int = 4) -> str:
    """The least decimal number of so many significant digits that is not below `value`; a dash for None.

    float(shown_up(x)) >= x always, with no tolerance. Raises ValueError for NaN, or digits outside of 1 to 15.
    """
    return NONE if value is None else _text(_rounded(value, digits, ROUND_CEILING), digits)


def shown_down(value: float | None, digits: int = 4) -> str:
    """The largest decimal number of so many significant digits that is not above `value`; else as `shown_up`."""
    return NONE if value is None else _text(_rounded(value, digits, ROUND_FLOOR), digits)


def number_up(value: float, digits: int = 4) -> float:
    """`shown_up` where a number is asked for: MLflow's metrics and tables, which its pages show with all digits."""
    return float(shown_up(value, digits))


def in_full(value: float | None) -> str:
    """The shortest text that reads back as the very number: as a person typed it; a dash for None."""
    return NONE if value is None else repr(float(value)).removesuffix(".0")


def _rounded(value: float, digits: int, rounding: str) -> Decimal:
    if not 1 <= digits <= _MOST_DIGITS:
        raise ValueError(f"digits = {digits} must lie between 1 and {_MOST_DIGITS}")
    if math.isnan(value):
        raise ValueError("a quantity of privacy that is no number (NaN) is not shown")
    # Of the shortest text, not of the binary number: 0.1, whose float is a little larger, stays 0.1.
    return Context(prec=digits, rounding=rounding).create_decimal(repr(float(value)))


def _text(number: Decimal, digits: int) -> str:
    """As `float.__format__` with "g" writes it, without a second rounding."""
    if not number.is_finite():
        return f"{float(number):g}"
    if number.is_zero():
        return "0"
    if -5 < number.adjusted() < digits:
        text = f"{number:f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa, _, exponent = f"{number.normalize():e}".partition("e")
    return f"{mantissa}e{int(exponent):+03d}"
