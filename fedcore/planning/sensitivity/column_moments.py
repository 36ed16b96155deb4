"""Means and squares of bounded columns as one vector, and the sensitivity of their sum.

For a record u (p,) with |u_i| <= 1 and |u| <= B the statistic is `t(u) = (u, u * u)`. It has each column's value and
square, and no products of columns. Values and squares have equal weights. Of the weights that were tried these give the
best scales and centres together (docs/explanation/statistics.md), since squares then cost little.

Sensitivity (ours; elementary). In one column, for a and b in [-1, 1],

    `(a - b)^2 + (a^2 - b^2)^2 = (a - b)^2 (1 + (a + b)^2) <= K (a^2 + b^2)`    with K = 37 / 16.

Proof. Scaling (a, b) up until the larger of |a|, |b| is 1 only raises the quotient of both sides. The quotient is the
same for (b, a) and (-a, -b), so let a = 1, b = -y. With y <= 0 the left side is `(1 - |y|)^2 (1 + (1 + |y|)^2)`, equal
to `2 - 2 |y| - y^2 + y^4 <= 2`. With 0 <= y <= 1 the difference of both sides is

    q(y) = K - 2 - 2 y + (K + 1) y^2 - y^4.

For y <= 1/3, y^4 <= y^2 / 9, so `q(y) >= 5/16 - 2 y + (53/16 - 1/9) y^2`, whose discriminant `4 - (5/4)(461/144)` is
negative. From there on q grows: `q' = -2 + 2 (K + 1) y - 4 y^3` is concave in y >= 0, and positive at 1/3 and at 1.

Summed over columns, `|t(u) - t(v)|^2 <= K (|u|^2 + |v|^2) <= 2 K B^2`. So one replaced record moves the sum by at
most `B sqrt(37 / 8) = 2.151 B`, where values alone would be charged 2 B. Pairs whose columns are (1, -0.32) or
(-0.32, 1) come to 0.9998 of that bound. The clipping bound C of the plan is half of that bound.
"""

from __future__ import annotations

import math

from fedcore.arrays import Vector


def half_diameter(bound: float) -> float:
    """`C = B sqrt(37 / 32)` for B = `bound`: replacing a record moves the sum of t by at most 2 C."""
    return bound * math.sqrt(37.0 / 32.0)


def largest_norm(bound: float) -> float:
    """Largest |t(u)| over records of norm at most `bound` B: sqrt(2) B, since u_i^4 <= u_i^2."""
    return bound * math.sqrt(2.0)


def length(columns: int) -> int:
    """Length of t(u) for a record of p `columns`: 2 p."""
    return 2 * columns


def record_bound(columns: int) -> float:
    """B, the norm to which records of p `columns` are shortened: sqrt(p + 3) / 2.

    No record of one column is shortened. For many columns B is about half of the largest norm, sqrt(p): few records
    have all values at an end of their range. A shorter bound is less noise for all records.
    """
    return 0.5 * math.sqrt(columns + 3.0)


def parted(moments: Vector, columns: int) -> tuple[Vector, Vector]:
    """Means (p,) and mean squares (p,) from a mean of t. Raises ValueError on another length."""
    if moments.shape != (length(columns),):
        raise ValueError(f"moments of {columns} columns are {length(columns)} numbers, not {moments.shape}")
    return moments[:columns], moments[columns:]
