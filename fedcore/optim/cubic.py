"""Global minimisers of cubic-regularised quadratics, of whatever curvature.

Nesterov and Polyak 2006, "Cubic regularization of Newton method and its global performance", section 5. Let f(v) =
`<g, v> + v'Hv / 2 + (M / 6) |v|^3` over R^d. Its minimisers are the v with `(H + s I) v = -g`, where s = M |v| / 2 and
H + s I is positive semidefinite. In the eigenvectors of H that is one equation in s. Its hard case is a g without a
part along the lowest eigenvector (Conn, Gould and Toint 2000, 7.3.1).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq

from fedcore.arrays import Matrix, Vector

_CLOSE = 4.0 * np.finfo(np.float64).eps
"""Relative error of the shift."""


def cubic_minimiser(gradient: Vector, hessian: Matrix, weight: float) -> Vector:
    """v (d,), for g (d,), symmetric H (d, d) and M = `weight` > 0.

    In the hard case it is one of two of equal value. Solves an eigenvalue problem of H, in time d^3. Raises ValueError
    for a weight that is not above 0.
    """
    if not weight > 0:
        raise ValueError(f"the cubic weight must be above 0, it is {weight:g}")
    values, vectors = np.linalg.eigh(hessian)
    parts = vectors.T @ gradient
    return np.asarray(vectors @ _in_eigenvectors(parts, values, weight))


def _in_eigenvectors(parts: Vector, values: Vector, weight: float) -> Vector:
    """The minimiser for a diagonal H of ascending `values`.

    The shift is sought as t = s - max(0, -lowest), which has all of its digits next to the pole of the equation.
    """
    base = max(0.0, -float(values[0]))
    shifted = values + base
    size = float(np.linalg.norm(parts))
    if size == 0.0 and base == 0.0:
        return np.zeros_like(parts)

    def excess(t: float) -> float:
        """1 / |v| less its value at s; concave and nearly linear (Conn, Gould, Toint, 7.3.3)."""
        return 1.0 / _length(parts, shifted, t) - 0.5 * weight / (base + t)

    # |v| is at most the root of M r^2 / 2 + lowest r = |g|, since no eigenvalue is below the lowest.
    lowest = float(values[0])
    longest = (-lowest + math.hypot(lowest, math.sqrt(2.0 * weight * size))) / weight
    high = max(0.5 * weight * longest - base, np.finfo(np.float64).tiny)  # next to the pole that difference cancels
    pole = shifted <= 8.0 * np.finfo(np.float64).eps * max(float(np.abs(values).max()), 1e-300)
    rest = _length(parts[~pole], shifted[~pole], 0.0) if not pole.all() else 0.0
    if base > 0.0 and not parts[pole].any() and rest <= 2.0 * base / weight:
        v = np.zeros_like(parts)
        v[~pole] = -parts[~pole] / shifted[~pole]
        v[0] = math.sqrt(max((2.0 * base / weight) ** 2 - rest**2, 0.0))
        return v
    while excess(high) < 0.0:
        high *= 16.0
    low = high
    while excess(low) > 0.0:
        low /= 16.0
    t = brentq(excess, low, high, xtol=np.finfo(np.float64).tiny, rtol=_CLOSE, maxiter=1000) if low < high else high
    return np.asarray(-parts / (shifted + t))


def _length(parts: Vector, shifted: Vector, t: float) -> float:
    return float(np.linalg.norm(parts / (shifted + t)))
