"""Clipped sums of differences of a network's gradients at two points, without per-record tensors.

With primes for the point before, a record's difference is (e1 - e1') x' in W1 and `e2 h' - e2' h'' = a h' + b k'` in
W2. There a = e2 - e2', b = e2', and k = h - h' with 0 for the constant 1 of the bias. All differences are computed from
w - before, layer by layer, before any product. So they have the relative accuracy of the step, however short.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from fedcore.arrays import Matrix, Vector
from fedcore.models.activations import Units
from fedcore.models.model import Flags
from fedcore.models.norms import LEAST_CLIP, exact_bound, factors, norms_of

ROUGH = 1e-7
"""Half of the part of the bound that rounding of cancelling products may reach in a sum."""
SHORT = 1e-140
_UNIT = 2.0**-52


class Layers(Protocol):
    """The part of a network that this module uses; see `fedcore.models.hidden_layer`."""

    hidden: int

    @property
    def outputs(self) -> int: ...

    @property
    def units(self) -> Units: ...

    def known(self, y: Vector) -> Flags: ...

    def residual(self, z: Matrix, y: Vector) -> Matrix: ...

    def residual_change(self, z: Matrix, dz: Matrix, y: Vector) -> Matrix: ...

    def layers(self, w: Vector, features: int) -> tuple[Matrix, Matrix]: ...


def clipped_difference_sum(
    network: Layers, w: Vector, before: Vector, X: Matrix, y: Vector, bound: float, weights: Vector | None = None
) -> Vector:
    """Sum over records of gradients at w less those at `before`, each shortened to `bound` (d,).

    See `Model.clipped_difference_sum`; the norm is over all weights. In W2 the two products may cancel, so their
    rounding is bounded by their sizes and added to the norm. The bias's own difference a is no longer than the whole,
    and `|b| |k| <= |a h' + b k'| + |a| |h|`. So sizes are at most 1 + 2 |h| times the norm. In all, n records of size s
    round by at most n gamma_{n+3} s, in either of two neighbours. Rounding could exceed 2 ROUGH of the bound from size
    `ROUGH bound / (2 u n^2)` on; such a record contributes zero. The number n is public, that of the block's records.
    """
    features, total = X.shape[1], np.zeros(len(w))
    if bound < LEAST_CLIP:
        return total
    # A warning, which a filter may turn into an exception, would reveal a record.
    with np.errstate(all="ignore"):
        (W1, W2), (_, V2), (D1, D2) = (network.layers(each, features) for each in (w, before, w - before))
        z1, dz1 = (W1 @ X.T).T, (D1 @ X.T).T
        h, k = np.ones((network.hidden + 1, len(X))).T, np.zeros((network.hidden + 1, len(X))).T
        h[:, :-1], slope, k[:, :-1], bent = network.units.moved(z1, dz1)
        z2, dz2 = (W2 @ h.T).T, (D2 @ h.T + V2 @ k.T).T
        a, b = network.residual_change(z2, dz2, y), network.residual(z2 - dz2, y)
        inner = (W2[:, :-1].T @ a.T).T
        inner += (D2[:, :-1].T @ b.T).T
        inner *= slope
        bent *= (V2[:, :-1].T @ b.T).T
        inner += bent

        terms = network.outputs + network.hidden
        norm, size = _outer_norms(a, h, b, k, (terms + 16) * _UNIT)
        norms = np.hypot(norms_of(inner) * norms_of(X), norm)
        scale = factors(norms, np.where(network.known(y), exact_bound(bound, terms + features), 0.0), weights)
        short, of_a, of_b = X * scale[:, None], a * scale[:, None], b * scale[:, None]
        lost = ~((norms < math.inf) & (len(X) ** 2 * _UNIT * size * scale <= ROUGH * bound))
        if lost.any():
            # 0 times infinity would spoil the sums of all records.
            for rows in (short, inner, of_a, h, of_b, k):
                rows[lost] = 0.0
        first, second = network.layers(total, features)
        np.matmul(inner.T, short, out=first)
        np.matmul(of_a.T, h, out=second)
        second += of_b.T @ k
    return total


def _outer_norms(a: Matrix, h: Matrix, b: Matrix, k: Matrix, unit: float) -> tuple[Vector, Vector]:
    """Norm of each record's a h' + b k' (n,), and its size |a| |h| + |b| |k| (n,).

    The norm is never below the true one nor that of the computed sum; rounding is at most `unit` of the size. With one
    output the entries are added themselves. Else let b = c a + p, with p orthogonal to a. The sum is then
    (h + c k)' + p k', whose squares add up without a difference. Where `a` is so short that its square has lost digits,
    the size stands for the norm, as its upper bound.
    """
    length, other, moved = norms_of(a), norms_of(b), norms_of(k)
    size = length * norms_of(h) + other * moved
    if a.shape[1] == 1:
        return norms_of(a * h + b * k) + unit * size, size
    along = np.einsum("ij,ij->i", a, b) / length**2
    across = b - along[:, None] * a
    norm = np.hypot(length * norms_of(h + along[:, None] * k), norms_of(across) * moved)
    return np.where(length < SHORT, size, norm) + unit * size, size
