"""The linear model w in R^d: predictor z = X w, per-record gradient residual(z, y) * x.

Conventions: X float64 (n, d), y float64 (n,), w float64 (d,).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedcore.arrays import Matrix, Vector
from fedcore.draws.stream import Draws
from fedcore.losses import TWO_CLASSES, LabelSet, Link, Loss, unsmoothed
from fedcore.models.model import Flags, Sums
from fedcore.models.norms import shortened_products

CACHED = 2**19
"""Bytes of records that are summed together: half of the second-level cache of today's processors."""


def cached(sizes: Sequence[int]) -> list[slice]:
    """Runs of parts of these bytes that are `CACHED` together, or of one part."""
    found: list[slice] = []
    room = 0
    for at, size in enumerate(sizes):
        if size > room or not found:
            found.append(slice(at, at))
            room = CACHED
        found[-1] = slice(found[-1].start, at + 1)
        room -= size
    return found


def row_norms(X: Matrix) -> Vector:
    """Euclidean norm of each record (n,); huge finite entries give a finite or infinite norm, never NaN."""
    largest = np.abs(X).max(axis=1, initial=0.0)
    scale = np.where(largest > 0, largest, 1.0)
    with np.errstate(over="ignore"):
        return np.asarray(scale * np.linalg.norm(X / scale[:, None], axis=1))


def predictor_error(w: Vector, bound: float, features: int) -> float:
    """Bound on the distance, in norm over classes, between two roundings of a record's predictors.

    It is twice the error bound of an inner product, `|w| |x| d u / (1 - d u)`, with u = 2^-53 (Higham 2002, equation
    3.5). It holds for records of norm at most `bound`, whatever the order of adding, fused or not.
    """
    unit = features * 2.0**-53
    return 2.0 * math.sqrt(float(w @ w)) * bound * unit / (1.0 - unit)


def residual_bounds(X: Matrix, clip: float) -> Vector:
    """Largest |residual| of each record whose gradient has norm at most `clip` (n,).

    It is clip / ||x||, infinite at x = 0. Rounded down by one part in 2^50, so that |residual| ||x|| <= clip holds in
    exact arithmetic too; to 0 below the normal numbers, where a quotient may be rounded up by much more.
    """
    norms = row_norms(X)
    # A norm of about zero. A warning, which a filter may turn into an exception, would reveal such a record.
    with np.errstate(divide="ignore", over="ignore"):
        bounds = np.asarray(clip / norms * (1.0 - 2.0**-50))
    tiny = np.finfo(np.float64).tiny  # below it a quotient or a norm has not all of its digits
    bounds[(bounds < tiny) | ((norms > 0) & (norms < tiny))] = 0.0
    return bounds


def clipped_gradient_sum(
    loss: Loss,
    w: Vector,
    X: Matrix,
    y: Vector,
    bounds: Vector,
    shifts: Vector | None = None,
    weights: Vector | None = None,
) -> Vector:
    """Sum over records of clip(residual * x) (d,); one replaced record moves it by at most 2 clip.

    `shifts` (n,): added to the predictors first, for gradients at points other than w; None: none. `weights` (n,):
    factors on clipped gradients; None: all 1.

    `bounds` is `residual_bounds(X, clip)`. Clipping a multiple of x to norm `clip` is clipping the multiple, so no
    per-record gradient is formed. A record whose residual is NaN contributes zero.
    """
    z = X @ w
    if shifts is not None:
        z += shifts
    return weighted_sum(clipped_residuals(loss, z, y, bounds, -bounds, weights), X)


def clipped_residuals(
    loss: Loss, z: Vector, y: Vector, high: Vector, low: Vector, weights: Vector | None = None
) -> Vector:
    """Residuals (n,), each clipped to [low, high] of its record, then times its weight, if there are any."""
    r = loss.residual(z, y)
    np.minimum(r, high, out=r)
    np.maximum(r, low, out=r)
    if weights is not None:
        r *= weights
    return r


def weighted_sum(r: Vector, X: Matrix, out: Vector | None = None) -> Vector:
    """Sum over records of r x (d,), without those whose r is NaN or infinite; sets these to 0 in r.

    `out`: takes the sum; None: a new array.
    """
    total: Vector = np.dot(r, X, out=out)
    # A NaN residual spoils every coordinate of the sum, and clipped terms are too small to overflow.
    if not math.isfinite(total[0]):
        np.copyto(r, 0.0, where=~np.isfinite(r))
        total = np.dot(r, X, out=out)
    return total


@dataclass(frozen=True)
class _Block:
    """Parts whose predictors and residuals share one array.

    `rows`: of each part, its predictors and its residuals. `weights`: of all rows, or None.
    """

    loss: Loss
    parts: list[Matrix]
    y: Vector
    high: Vector
    low: Vector
    z: Vector
    rows: list[tuple[Vector, slice]]
    weights: Vector | None

    @classmethod
    def of(cls, loss: Loss, parts: Sequence[tuple[Matrix, Vector, Vector]], weights: Sequence[Vector] | None) -> _Block:
        y, high = (np.concatenate([part[column] for part in parts]) for column in (1, 2))
        z, ends = np.empty(len(y)), np.cumsum([len(part[1]) for part in parts]).tolist()
        at = [slice(start, stop) for start, stop in zip([0, *ends], ends, strict=False)]
        each_weight = None if weights is None else np.concatenate(weights)
        return cls(loss, [part[0] for part in parts], y, high, -high, z, [(z[each], each) for each in at], each_weight)

    def clipped_gradient_sums(self, w: Vector, out: Matrix) -> None:
        """`clipped_gradient_sum` of each part, in `out`. Products are per part: BLAS rounds by the place of a row."""
        for X, (z, _) in zip(self.parts, self.rows, strict=True):
            np.dot(X, w, out=z)
        r = clipped_residuals(self.loss, self.z, self.y, self.high, self.low, self.weights)
        for X, (_, at), total in zip(self.parts, self.rows, out, strict=True):
            weighted_sum(r[at], X, total)


@dataclass(frozen=True)
class Linear:
    """The linear model with a loss on its predictor. Its labels are the loss's."""

    loss: Loss

    @property
    def labels(self) -> LabelSet:
        """The loss's."""
        return self.loss.labels

    @property
    def link(self) -> Link:
        """The loss's."""
        return self.loss.link

    def weights(self, features: int) -> int:
        """Number of weights: one per feature."""
        return features

    def start(self, features: int, generator: Draws) -> Vector:
        """0, the centre of the domain."""
        return np.zeros(features)

    def bounds(self, X: Matrix, y: Vector, clip: float) -> Vector:
        """`residual_bounds`, for any label."""
        return residual_bounds(X, clip)

    def clipped_gradient_sum(
        self, w: Vector, X: Matrix, y: Vector, bounds: Vector, weights: Vector | None = None
    ) -> Vector:
        """`clipped_gradient_sum` of this module, for this loss."""
        return clipped_gradient_sum(self.loss, w, X, y, bounds, None, weights)

    def clipped_gradient_sums(
        self, parts: Sequence[tuple[Matrix, Vector, Vector]], weights: Sequence[Vector] | None = None
    ) -> Sums | None:
        """Sums in blocks of records that stay in a processor's cache between their two products."""
        blocks = cached([part[0].nbytes for part in parts])
        each = [_Block.of(self.loss, parts[at], None if weights is None else weights[at]) for at in blocks]

        def sums(w: Vector) -> Matrix:
            found = np.empty((len(parts), len(w)))
            for at, block in zip(blocks, each, strict=True):
                block.clipped_gradient_sums(w, found[at])
            return found

        return sums

    def clipped_difference_sum(
        self, w: Vector, before: Vector, X: Matrix, y: Vector, bound: float, weights: Vector | None = None
    ) -> Vector:
        """As `Model.clipped_difference_sum`. A difference has rank one, (r - r') x.

        Not for a loss at drawn points, whose residuals do not follow from w and before alone.
        """
        with np.errstate(all="ignore"):
            z, dz = X @ w, X @ (w - before)
            r = self.loss.residual_change(z, dz, y)
            known = np.isfinite(y) & np.isfinite(z) & np.isfinite(dz)  # a constant slope would hide an overflow
            return shortened_products(r[:, None], X, known, bound, weights)[0]

    def rounding(self, w: Vector, bound: float) -> float:
        """beta |x| times the error of a predictor, beta on the range of such records' predictors.

        Infinite for a nonsmooth loss.
        """
        reach = math.sqrt(float(w @ w)) * bound
        smoothness = self.loss.smoothness_within(reach)
        if not math.isfinite(smoothness):
            return math.inf
        return smoothness * bound * predictor_error(w, bound, w.size) + bound * self.loss.residual_error(reach)

    def predictors(self, w: Vector, X: Matrix) -> Vector:
        """<w, x> of each record (n,)."""
        return X @ w

    def evaluate(self, w: Vector, X: Matrix, y: Vector) -> tuple[Vector, Flags | None]:
        """Unsmoothed loss of each record (n,), and True where its sign is predicted wrongly; 0 predicts +1."""
        return self._evaluated(X @ w, y)

    def evaluate_parts(self, w: Vector, parts: Sequence[tuple[Matrix, Vector]]) -> list[tuple[Vector, Flags | None]]:
        """`evaluate` of each part, in one pass apart from the products."""
        y = np.concatenate([y for _, y in parts])
        losses, wrong = self._evaluated(np.concatenate([X @ w for X, _ in parts]), y)
        ends = np.cumsum([len(y) for _, y in parts]).tolist()
        at = [slice(start, stop) for start, stop in zip([0, *ends], ends, strict=False)]
        return [(losses[part], None if wrong is None else wrong[part]) for part in at]

    def _evaluated(self, z: Vector, y: Vector) -> tuple[Vector, Flags | None]:
        wrong = np.where(z >= 0, 1.0, -1.0) != y if self.labels == TWO_CLASSES else None
        return unsmoothed(self.loss).value(z, y), wrong
