"""A record's gradient and Hessian as one vector, and how far replacing one record can move their sum.

For a linear predictor the gradient of a record x is r x and its Hessian c x x^T, c >= 0 for a convex loss. The
statistic is

    t(x) = (g, a svec(H)),    |g| <= C,    |H|_F <= S,    a = C sqrt(balance) / S,

where g and H are the two clipped, which shortens r and c alone, and svec lists the upper triangle row by row with the
entries off the diagonal times sqrt(2), so that its Euclidean norm is the Frobenius norm. `balance` is the squared ratio
of the longest second part to the longest first part, so it says which of the two gets the smaller relative noise.

Sensitivity (ours; elementary). Let u be the absolute cosine of the angle between two records' x, A = C^2 and
B = balance C^2. The squared distance of their t is convex in (r, r') and in (c, c'), so it is largest where |g|, |g'|
are C with opposite signs, and where each of a |H|, a |H'| is 0 or sqrt(B):

    both Hessians at their bound:    2 A (1 + u) + 2 B (1 - u^2),    at most 2 A + 2 B + A^2 / (2 B) where A <= 2 B,
                                                                     else 4 A, in u = 1
    one of them 0:                   2 A (1 + u) + B,                at most 4 A + B
    both of them 0:                  2 A (1 + u),                    at most 4 A.

Two positive semidefinite parts are at most sqrt(2) S apart, not 2 S; and where Hessians are farthest apart, at a right
angle, gradients are not. With balance 1 the bound is sqrt(5) C, where two answers of their own would cost sqrt(8) C.
"""

from __future__ import annotations

import math

import numpy as np

from fedcore.arrays import Matrix, Vector

MOST_WEIGHTS = 1000
"""Of a model whose Hessians are asked for: half a million numbers in an answer."""


def half_diameter(clip: float, balance: float) -> float:
    """Half of the largest distance between two records' t, in units of the gradient; `clip`: C."""
    return 0.5 * clip * math.sqrt(_squared_diameter(balance))


def _squared_diameter(balance: float) -> float:
    """In units of C^2."""
    both = 2.0 + 2.0 * balance + 0.5 / balance if balance >= 0.5 else 4.0
    return max(both, 4.0 + balance)


def largest_norm(clip: float, balance: float) -> float:
    """The largest |t|."""
    return clip * math.sqrt(1.0 + balance)


def length(dim: int) -> int:
    """Numbers of t of d weights: d + d (d + 1) / 2."""
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
    """g (d,) and H (d, d) that a mean of t stands for. Raises ValueError on another length."""
    if answer.shape != (length(dim),):
        raise ValueError(f"gradient and Hessian of {dim} weights are {length(dim)} numbers, not {answer.shape}")
    half = np.zeros((dim, dim))
    half[np.triu_indices(dim)] = answer[dim:] * (math.sqrt(0.5) / scale)
    full = half + half.T  # doubles the diagonal, which carries no sqrt(2)
    diagonal = np.einsum("ii->i", full)
    diagonal *= math.sqrt(0.5)
    return answer[:dim], full


def spectral_noise(deviation: float, dim: int) -> float:
    """About how far noise of this deviation on each number of svec(H) moves an eigenvalue of H (d, d) at most.

    Off the diagonal its deviation is `deviation` / sqrt(2), and the norm of such a matrix comes to sqrt(2 d) times
    `deviation` as d grows (Wigner's law; Bai and Yin 1988).
    """
    return deviation * math.sqrt(2.0 * dim)
