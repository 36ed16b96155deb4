"""Noised steps on a cubic-regularised quadratic model, with the average of their points.

Huo et al., "Federated Cubic Regularized Newton Learning with Sparsification-amplified Differential Privacy". Algorithm
2, GMSolver (spec dp-fcrn 5.2). Its average leaves the last point out, so tau points take tau - 1 gradients. With tau =
2 the Hessian has no part in the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from fedcore.arrays import Vector
from fedcore.optim.projection import onto_ball

Average = Literal["paper", "shifted"]
"""Weights of points in the average. paper: `2 (s + 1) / (tau (tau + 1))` on points 0 .. tau - 1; shifted:
`2 s / (tau (tau + 1))` on 1 .. tau."""


def step_lengths(count: int, convexity: float, curvature: float) -> list[float]:
    """eta_s = min(2 / (mu (s + 2)), 1 / curvature) of the first `count` steps.

    With `curvature` 0 it is the paper's rule, without the second bound. The first step is then 1 / mu gradients long,
    and steps overshoot until about s = 2 curvature / mu (spec dp-fcrn 5.2). Raises ValueError where neither bounds a
    step.
    """
    if not (convexity > 0 or curvature > 0):
        raise ValueError("steps have no length without strong convexity and without a bound on the curvature")
    rule = [2.0 / (convexity * (s + 2)) if convexity > 0 else np.inf for s in range(count)]
    return [min(eta, 1.0 / curvature) if curvature > 0 else eta for eta in rule]


def noised_descent(
    gradient: Callable[[Vector], Vector],
    dim: int,
    points: int,
    steps: list[float],
    weight: float,
    radius: float,
    ridge: tuple[float, Vector] | None = None,
    average: Average = "paper",
) -> Vector:
    """The averaged displacement v (dim,) of projected steps from 0 within the ball of this radius.

    `gradient`: of the quadratic part at a displacement, noised. `weight`: M of (M / 6) |v|^3. `ridge`: its weight and
    the point from which displacements are counted; its gradient is exact. `steps`: one per gradient, points - 1, or
    `points` with the shifted average.
    """
    v, mean = np.zeros(dim), np.zeros(dim)
    last = points if average == "shifted" else points - 1
    for s in range(last):
        if average == "paper":
            mean += 2.0 * (s + 1) / (points * (points + 1)) * v
        direction = gradient(v) + 0.5 * weight * float(np.linalg.norm(v)) * v
        if ridge is not None:
            direction = direction + ridge[0] * (ridge[1] + v)
        v = onto_ball(v - steps[s] * direction, np.zeros(dim), radius)
        if average == "shifted":
            mean += 2.0 * (s + 1) / (points * (points + 1)) * v
    if average == "paper":
        mean += 2.0 / (points + 1) * v
    return mean
