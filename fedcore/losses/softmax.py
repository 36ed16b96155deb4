"""Softmax loss: the cross entropy of several classes."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import numpy as np
from pydantic.dataclasses import dataclass

from fedcore.arrays import Matrix, Vector
from fedcore.hyperparameters import DECLARED
from fedcore.losses.traits import CLASSES, SOFTMAX, LabelSet, Link, LossTraits

_LOWEST = -340.0  # exp of it squared is still a normal number
_NEAR = 30.0  # steps of predictors whose exponentials are far below one over the least probability

MOST_CLASSES = 2**12
"""Largest number of classes, the columns of each record's arrays."""


@dataclass(frozen=True, config=DECLARED)
class Softmax(LossTraits):
    """log(sum_k exp(z_k)) - z_y for class numbers y in {0, ..., C-1}.

    Convex, sqrt(2)-Lipschitz and 1/2-smooth in z. Unlike the other losses its predictor has C values per record: z is
    (n, C). Its gradient in z is p - e_y, of squared norm `sum_{k != y} p_k^2 + (1 - p_y)^2 <= 2 (1 - p_y)^2 < 2`. Its
    Hessian is H = diag(p) - p p'. Its form v'H v is the variance of v_k under p, at most
    `(max v - min v)^2 / 4 <= |v|^2 / 2` (Popoviciu 1935), reached by p = (1/2, 1/2). Source: multinomial logistic
    regression; spec dp-scaffold, models.
    """

    name: Literal["softmax"] = "softmax"

    labels: ClassVar[LabelSet] = CLASSES
    link: ClassVar[Link] = SOFTMAX
    lipschitz: ClassVar[float] = math.sqrt(2.0)
    smoothness: ClassVar[float] = 0.5

    def value(self, z: Matrix, y: Vector) -> Vector:
        """Loss of each record (n,), in nats; NaN for a label that is no class."""
        shifted = z - z.max(axis=1, keepdims=True)
        right = self.one_hot(y, z.shape[1])
        own = np.where(right.any(axis=1), shifted[np.arange(len(y)), right.argmax(axis=1)], np.nan)
        return np.asarray(np.log(np.exp(shifted).sum(axis=1)) - own)

    def residual(self, z: Matrix, y: Vector) -> Matrix:
        """Derivative in z, p - e_y (n, C); a row whose z holds infinity or NaN is NaN throughout.

        Entries of p are at least 1e-148 (an error that size), so that squares of residuals do not vanish.
        """
        r = _probabilities(z)
        r -= self.one_hot(y, z.shape[1])
        return r

    def residual_change(self, z: Matrix, dz: Matrix, y: Vector) -> Matrix:
        """residual(z, y) - residual(z - dz, y) = p - p' (n, C), p at z and p' at z - dz.

        `p_k - p'_k` is `p'_k (exp(dz_k - change of the log of the sum) - 1)`. The code takes dz relative to that of the
        likeliest class at z - dz. Where that class is almost certain the change of the sum is then small, and the
        others lose no digit. Rows with longer steps are subtracted.
        """
        before = z - dz
        old = _probabilities(before)
        step = dz - np.take_along_axis(dz, before.argmax(axis=1)[:, None], axis=1)
        near = np.asarray((np.abs(step) <= _NEAR).all(axis=1))
        held = np.clip(step, -_NEAR, _NEAR)
        total = np.log1p((old * np.expm1(held)).sum(axis=1, keepdims=True))
        return np.where(near[:, None], old * np.expm1(held - total), _probabilities(z) - old)

    @staticmethod
    def one_hot(y: Vector, classes: int) -> np.ndarray:
        """e_y of each record, bool (n, C), class by class in memory; no class where y is outside 0, ..., C-1."""
        return np.asarray(y == np.arange(float(classes))[:, None]).T


def _probabilities(z: Matrix) -> Matrix:
    """p (n, C): exp(z) over its sum, entries at least 1e-148."""
    p = z - z.max(axis=1, keepdims=True)
    np.maximum(p, _LOWEST, out=p)
    np.exp(p, out=p)
    p /= p.sum(axis=1, keepdims=True)
    return p
