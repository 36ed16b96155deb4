"""The linear model w in R^d: predictor z = X w, per-record gradient residual(z, y) * x.

Conventions: X float64 (n, d), y float64 (n,), w float64 (d,).
"""

from __future__ import annotations

import math

import numpy as np

from fedcore.arrays import Matrix, Vector
from fedcore.losses import Loss


def row_norms(X: Matrix) -> Vector:
    """Euclidean norm of each record (n,); huge finite entries give a finite or infinite norm, never NaN."""
    largest = np.abs(X).max(axis=1, initial=0.0)
    scale = np.where(largest > 0, largest, 1.0)
    with np.errstate(over="ignore"):
        return np.asarray(scale * np.linalg.norm(X / scale[:, None], axis=1))


def residual_bounds(X: Matrix, clip: float) -> Vector:
    """Largest |residual| of each record whose gradient has norm at most `clip` (n,): clip / ||x||, infinite at x = 0.

    Rounded down by one part in 2^50, so that |residual| ||x|| <= clip holds in exact arithmetic too.
    """
    norms = row_norms(X)
    # Zero or next to it; a warning, which a filter may turn into an exception, would tell that there is such a record.
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(clip / norms * (1.0 - 2.0**-50))


def clipped_gradient_sum(
    loss: Loss, w: Vector, X: Matrix, y: Vector, bounds: Vector, shifts: Vector | None = None
) -> Vector:
    """Sum over records of clip(residual * x) (d,); replacing one record moves it by at most 2 clip in norm.

    `shifts` (n,): what is added to the predictors first, for gradients at points other than w; None: nothing.

    `bounds` is `residual_bounds(X, clip)`. Clipping a multiple of x to norm `clip` is clipping the multiple, so no
    per-record gradient is formed. A record whose residual is not a number contributes zero.
    """
    z = X @ w
    if shifts is not None:
        z += shifts
    r = loss.residual(z, y)
    np.minimum(r, bounds, out=r)
    np.maximum(r, -bounds, out=r)
    total = r @ X
    # A residual that is not a number spoils every coordinate of the sum, and clipped terms are too small to overflow.
    if not math.isfinite(total[0]):
        np.copyto(r, 0.0, where=~np.isfinite(r))
        total = r @ X
    return total


def mean_loss(loss: Loss, w: Vector, X: Matrix, y: Vector) -> float:
    """Mean loss over the records of (X, y)."""
    return float(np.mean(loss.value(X @ w, y)))


def error_rate(w: Vector, X: Matrix, y: Vector) -> float:
    """Fraction of records with y in {-1, +1} whose sign is predicted wrongly; a predictor of 0 counts as +1."""
    return float(np.mean(np.where(X @ w >= 0, 1.0, -1.0) != y))
