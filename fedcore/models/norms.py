"""Norms that are never too small, and the factors by which they shorten one record's part of a sum."""

from __future__ import annotations

import math

import numpy as np

from fedcore.arrays import Matrix, Vector
from fedcore.models.model import Flags

LEAST_CLIP = 1e-100
"""Least bound that lets anything through: so far above the subnormal numbers that their rounding cannot lift a record
above a bound."""
_TINY = float(np.finfo(np.float64).tiny)  # the least normal number


def norms_of(rows: Matrix) -> Vector:
    """Norm of each row (n,), at least 1.5e-154: it makes up for squares below the normal numbers."""
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", rows, rows) + _TINY))


def exact_bound(bound: float, terms: int) -> float:
    """`bound` rounded down, for norms computed up to a relative error of about `terms` 2^-53.

    Factors and their products are rounded once each. 0 below LEAST_CLIP.
    """
    exact = 1.0 - (terms + 16) * 2.0**-52
    return bound * exact if bound >= LEAST_CLIP else 0.0


def factors(norms: Vector, bounds: Vector, weights: Vector | None) -> Vector:
    """min(1, bounds / norms) of each record (n,), times its weight; norms are above 0, of any size."""
    scale = bounds / np.maximum(norms, bounds)
    if weights is not None:
        scale *= weights
    scale[scale < _TINY] = 0.0  # below it a quotient may be rounded up by much
    return np.asarray(scale)


def shortened_products(r: Matrix, X: Matrix, known: Flags, bound: float, weights: Vector | None = None) -> Matrix:
    """Sum over `known` records of r x' (C, d), each shortened to norm `bound`, times its weight.

    A record with a NaN or infinite number, or whose squared norm overflows, adds zero. All records go through the
    product, so no row's bits depend on the outcome of another. Callers turn floating-point warnings off.
    """
    norms = norms_of(r) * norms_of(X)
    scale = factors(norms, np.where(known, exact_bound(bound, r.shape[1] + X.shape[1]), 0.0), weights)
    short = r * scale[:, None]
    lost = ~(norms < math.inf)
    if lost.any():
        # Their factor is 0 or NaN, and 0 times infinity would spoil the sums of all records.
        short[lost] = 0.0
        X = np.where(lost[:, None], 0.0, X)
    return short.T @ X
