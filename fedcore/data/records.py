"""A silo's records as arrays, and the per-record map with public constants that produces them.

Shapes: n records, d features (bias column included when there is one).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcore.data.constants.pca import Projection
from fedcore.errors import InputError
from fedcore.models.model_config import Normalise


@dataclass(frozen=True, eq=False)
class Records:
    """Features `X` (rows, d), C-contiguous, and labels `y` (rows,); float64, read-only.

    `bound`: public bound on the norm of each row, by construction; infinite if there is none. `person`: name of the
    column of persons where these are the unit of privacy (`fedcore.data.persons`). Each person has `places` consecutive
    rows with `weights` (rows,); None: all are filled and weigh 1.
    """

    X: NDArray[np.float64]
    y: NDArray[np.float64]
    bound: float = float("inf")
    person: str | None = None
    places: int = 1
    weights: NDArray[np.float64] | None = None

    @property
    def n(self) -> int:
        """Number of units of the guarantee: records, or persons."""
        return self.X.shape[0] // self.places

    @property
    def dim(self) -> int:
        return self.X.shape[1]


def prepare_records(
    features: ArrayLike,
    labels: ArrayLike,
    bias: bool,
    feature_bound: float,
    divide_by: float = 1.0,
    projection: Projection | None = None,
    normalise: Normalise = "record",
    longest: float | None = None,
) -> Records:
    """Records from `features` (n, d), in order, with rows of norm at most `feature_bound`.

    Each row is divided by `divide_by`, projected by `projection`, and gets a last column of 1 if `bias`. Then a row
    longer than `feature_bound` is scaled down to it; shorter rows stay. With `normalise` = features the scaling comes
    before the 1, so the norm is at most sqrt(feature_bound^2 + 1). `longest`: bound on the features' norm by a schema;
    then all rows get one scale (`common_scale`), and a row without a label (NaN) becomes zeros.

    No row depends on another, and no row is dropped, merged or moved. So replacing one record changes one row, as the
    sensitivity assumes, if the projection's constants do not come from these records. Finite input of any size gives
    finite output. Raises InputError for wrong shapes, constants that are not positive, and features or labels that are
    not finite.
    """
    for key, constant in (("feature_bound", feature_bound), ("divide_by", divide_by)):
        if not 0 < constant < float("inf"):
            raise InputError(f"{key} = {constant} must be a positive, finite number")
    X = np.asarray(features, dtype=np.float64)
    y = np.array(labels, dtype=np.float64)
    if X.ndim != 2 or y.shape != X.shape[:1]:
        raise InputError(f"features of shape {X.shape} and labels of shape {y.shape} must be (n, d) and (n,)")
    void = np.zeros(len(y), dtype=bool) if longest is None else np.isnan(y)
    if not (np.isfinite(X).all() and np.isfinite(y[~void]).all()):
        raise InputError("features and labels must be finite numbers")

    if projection is not None and X.shape[1] != len(projection.mean):
        raise InputError(f"features of shape {X.shape} do not fit a projection of {len(projection.mean)} features")

    dim = X.shape[1] if projection is None else projection.dim
    out = np.ones((X.shape[0], dim + bool(bias)))
    largest = np.finfo(np.float64).max
    rows = out[:, :dim] if projection is None else np.empty(X.shape)
    with np.errstate(over="ignore", under="ignore"):
        np.divide(X, divide_by, out=rows)
    np.clip(rows, -largest, largest, out=rows)  # a quotient beyond the float64 range
    if projection is not None:
        out[:, :dim] = projection(rows)
    scaled = out[:, :dim] if normalise == "features" else out
    if longest is not None:
        scaled *= common_scale(longest, bias, feature_bound, normalise)
        out[void], y[void] = 0.0, 0.0
    _shorten_rows(scaled, feature_bound)
    out.setflags(write=False)
    y.setflags(write=False)
    return Records(out, y, math.hypot(feature_bound, 1.0) if normalise == "features" and bias else feature_bound)


def common_scale(longest: float, bias: bool, feature_bound: float, normalise: Normalise) -> float:
    """Common factor that brings records with features of norm `longest` to `feature_bound`.

    The norm includes the bias if it is scaled with the features.
    """
    return feature_bound / (math.hypot(longest, 1.0) if bias and normalise == "record" else longest)


def _shorten_rows(X: NDArray[np.float64], bound: float) -> None:
    """Scales every row of X (n, d) that is longer than `bound` down to it, in place.

    Norms are relative to a row's largest entry, so squares neither overflow nor vanish. The target lies below `bound`
    by the rounding error of a norm, (d + 8) eps, so a scaled row is never longer than `bound`.
    """
    if not X.size:
        return
    top = np.abs(X).max(axis=1)
    top[top == 0] = 1.0
    with np.errstate(over="ignore", under="ignore"):
        unit = X / top[:, None]
        length = np.sqrt(np.einsum("ij,ij->i", unit, unit))  # in [1, sqrt(d)], or 0
        long = length > bound / top
        target = bound * (1 - (X.shape[1] + 8) * np.finfo(np.float64).eps)
        X[long] = unit[long] * (target / length[long])[:, None]
