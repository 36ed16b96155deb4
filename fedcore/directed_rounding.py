"""Rounding of shown privacy quantities, in the direction that promises no more privacy.

| `shown_up` | `shown_down` |
|---|---|
| epsilon spent or asked for, delta, mu, sampling rate | remaining budget, room, lower bounds, ends of ranges |
| noise to be applied | noise that was applied: an epsilon recomputed from it is not smaller |

Values that a person typed are shown `in_full`, as are numbers for which neither direction is right. `fedcore`, `tasks`
and `flows` format these quantities in no other way (`tests/docs/test_shown_numbers.py`). All three functions return
text, so that no value is rounded twice.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

NONE = "-"
"""Shown in place of a missing value."""
_MOST_DIGITS = 15
"""Different decimals of at most 15 significant digits are different floats."""


def shown_up(value: float | None, digits: int = 4) -> str:
    """Least decimal of `digits` significant digits that is not below `value`; a dash for None.

    float(shown_up(x)) >= x always, with no tolerance. Raises ValueError for NaN, or digits outside of 1 to 15.
    """
    return NONE if value is None else _text(_rounded(value, digits, ROUND_CEILING), digits)


def shown_down(value: float | None, digits: int = 4) -> str:
    """Largest decimal of `digits` digits that is not above `value`; else as `shown_up`."""
    return NONE if value is None else _text(_rounded(value, digits, ROUND_FLOOR), digits)


def number_up(value: float, digits: int = 4) -> float:
    """`shown_up` as a float, for MLflow's metrics and tables, which show all digits of a float."""
    return float(shown_up(value, digits))


def in_full(value: float | None) -> str:
    """Shortest text that reads back as the same float, as a person typed it; a dash for None."""
    return NONE if value is None else repr(float(value)).removesuffix(".0")


def _rounded(value: float, digits: int, rounding: str) -> Decimal:
    if not 1 <= digits <= _MOST_DIGITS:
        raise ValueError(f"digits = {digits} must lie between 1 and {_MOST_DIGITS}")
    if math.isnan(value):
        raise ValueError("a quantity of privacy that is no number (NaN) is not shown")
    # Rounds the shortest text, not the binary number: 0.1, whose float is a little larger, stays 0.1.
    return Context(prec=digits, rounding=rounding).create_decimal(repr(float(value)))


def _text(number: Decimal, digits: int) -> str:
    """Text as `float.__format__` writes it with "g", without a second rounding."""
    if not number.is_finite():
        return f"{float(number):g}"
    if number.is_zero():
        return "0"
    if -5 < number.adjusted() < digits:
        text = f"{number:f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa, _, exponent = f"{number.normalize():e}".partition("e")
    return f"{mantissa}e{int(exponent):+03d}"
