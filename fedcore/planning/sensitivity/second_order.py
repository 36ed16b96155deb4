"""A record's gradient and Hessian as one vector, and the sensitivity of their sum.

For a linear predictor the gradient of a record x is r x. Its Hessian is c x x^T, with c >= 0 for a convex loss. The
statistic is

    t(x) = (g, a svec(H)),    |g| <= C,    |H|_F <= S,    a = C sqrt(balance) / S.

Here g and H are the clipped gradient and Hessian; clipping shortens r and c alone. svec lists the upper triangle row by
row, with the entries off the diagonal times sqrt(2). Its Euclidean norm is then the Frobenius norm. `balance` is the
squared ratio of the longest second part to the longest first part. The larger part has the smaller relative noise.

Sensitivity (ours; elementary). Let u be the absolute cosine of the angle between two records' x, A = C^2 and B =
balance C^2. The squared distance of their t is convex in (r, r') and in (c, c'). It is largest where |g| and |g'| are C
with opposite signs, and each of a |H|, a |H'| is 0 or sqrt(B):

- Both Hessians at their bound: `2 A (1 + u) + 2 B (1 - u^2)`, at most `2 A + 2 B + A^2 / (2 B)` where A <= 2 B, else at
  most 4 A, in u = 1.
- One of them 0: `2 A (1 + u) + B`, at most 4 A + B.
- Both of them 0: `2 A (1 + u)`, at most 4 A.

Two positive semidefinite parts are at most sqrt(2) S apart, not 2 S. Hessians are farthest apart at a right angle,
where gradients are not. With balance 1 the bound is sqrt(5) C, where two answers of their own would cost sqrt(8) C.
"""

from __future__ import annotations

import math

import numpy as np

from fedcore.arrays import Matrix, Vector

MOST_WEIGHTS = 1000
"""Largest number of weights of a model whose Hessians are released: an answer then has half a million numbers."""


def half_diameter(clip: float, balance: float) -> float:
    """Half of the largest distance between two records' t, in units of the gradient; `clip`: C."""
    return 0.5 * clip * math.sqrt(_squared_diameter(balance))


def _squared_diameter(balance: float) -> float:
    """Largest squared distance between two records' t, in units of C^2."""
    both = 2.0 + 2.0 * balance + 0.5 / balance if balance >= 0.5 else 4.0
    return max(both, 4.0 + balance)


def largest_norm(clip: float, balance: float) -> float:
    """The largest |t|."""
    return clip * math.sqrt(1.0 + balance)


def length(dim: int) -> int:
    """Length of t for d weights: d + d (d + 1) / 2."""
    return dim + dim * (dim + 1) // 2


def scale_of(clip: float, curvature: float, balance: float) -> float:
    """a, for the bounds C and S = `curvature`."""
    return clip * math.sqrt(balance) / curvature


def packed(gradient: Vector, hessian: Matrix, scale: float) -> Vector:
    """(g, a svec(H)) of g (d,) and symmetric H (d, d), `scale` a."""
    off = hessian * (scale * math.sqrt(2.0))
    diagonal = np.einsum("ii->i", off)
    diagonal *= math.sqrt(0.5)
    return np.concatenate([gradient, off[np.triu_indices(len(gradient))]])


def unpacked(answer: Vector, dim: int, scale: float) -> tuple[Vector, Matrix]:
    """g (d,) and H (d, d) from a mean of t. Raises ValueError on another length."""
    if answer.shape != (length(dim),):
        raise ValueError(f"gradient and Hessian of {dim} weights are {length(dim)} numbers, not {answer.shape}")
    half = np.zeros((dim, dim))
    half[np.triu_indices(dim)] = answer[dim:] * (math.sqrt(0.5) / scale)
    full = half + half.T  # doubles the diagonal, which carries no sqrt(2)
    diagonal = np.einsum("ii->i", full)
    diagonal *= math.sqrt(0.5)
    return answer[:dim], full


def spectral_noise(deviation: float, dim: int) -> float:
    """Approximate bound on how far noise on each number of svec(H) moves an eigenvalue of H (d, d).

    `deviation`: the noise's standard deviation, off the diagonal `deviation` / sqrt(2). The norm of such a matrix tends
    to sqrt(2 d) times `deviation` as d grows (Wigner's law; Bai and Yin 1988).
    """
    return deviation * math.sqrt(2.0 * dim)
