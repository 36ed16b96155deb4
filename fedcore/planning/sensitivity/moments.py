"""First and second moments of records as one vector, and the sensitivity of their sum.

For a record x (p,) with |x| <= B the statistic is `t(x) = (B x, svec(x x^T))`; the factor B gives both parts one unit.
svec lists the upper triangle row by row, with the entries off the diagonal times sqrt(2). The Euclidean norm of svec(A)
is then the Frobenius norm of A, for symmetric A.

Sensitivity (ours; elementary). Let |x| = r, |y| = s, both at most B, and <x, y> = q. Then

    |t(x) - t(y)|^2 = B^2 (r^2 + s^2 - 2 q) + r^4 + s^4 - 2 q^2.

Over real numbers q this is largest at q = -B^2 / 2, where it is `B^2 (r^2 + s^2) + B^4 / 2 + r^4 + s^4`. That grows in
r and s, so `|t(x) - t(y)|^2 <= 2 B^4 + B^4 / 2 + 2 B^4 = 9 B^4 / 2`. Two records of norm B at an angle of 120 degrees
attain it (p >= 2). So one replaced record moves the sum by at most 3 B^2 / sqrt(2). That is three quarters of twice the
largest norm, 2 sqrt(2) B^2. The clipping bound C of the plan is half of the largest move.
"""

from __future__ import annotations

import math

import numpy as np

from fedcore.arrays import Matrix, Vector


def half_diameter(bound: float) -> float:
    """`C = 3 B^2 / sqrt(8)` for B = `bound`: replacing a record moves the sum of t by at most 2 C."""
    return 1.5 * math.sqrt(0.5) * bound**2


def largest_norm(bound: float) -> float:
    """The largest |t(x)| = sqrt(B^2 |x|^2 + |x|^4) over records of norm at most `bound` B: sqrt(2) B^2."""
    return math.sqrt(2.0) * bound**2


def length(features: int) -> int:
    """Length of t(x) for a record of p `features`: p + p (p + 1) / 2."""
    return features + features * (features + 1) // 2


def unpacked(moments: Vector, features: int, bound: float) -> tuple[Vector, Matrix]:
    """Mean (p,) and symmetric second moment (p, p) from a mean of t. Raises ValueError on another length."""
    if moments.shape != (length(features),):
        raise ValueError(f"moments of {features} features are {length(features)} numbers, not {moments.shape}")
    second = np.zeros((features, features))
    second[np.triu_indices(features)] = moments[features:] * math.sqrt(0.5)
    second += second.T  # doubles the diagonal, which carries no sqrt(2)
    diagonal = np.einsum("ii->i", second)
    diagonal *= math.sqrt(0.5)
    return moments[:features] / bound, second
