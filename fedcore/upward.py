"""Epsilon and delta as they are shown: rounded up, for a guarantee that is stated must hold."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context, Decimal

EXACT = 1e-9
"""Relative: what accountants are exact to. A plan that meets its target 2 to the last bit is shown as 2, not 2.001."""


def rounded_up(value: float | None, digits: int = 4) -> str:
    """The least number of so many significant digits that is not below `value`, but for `EXACT`; a dash for None."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return f"{value:g}"
    nearest = float(f"{value:.{digits}g}")
    if nearest >= value * (1.0 - EXACT):
        return f"{nearest:.{digits}g}"
    above = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(value))
    return f"{float(above):.{digits}g}"
