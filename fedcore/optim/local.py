"""Local steps of one silo between two messages, and their step length.

Source: Noble, Bellet and Dieuleveut 2022, Algorithm 1, lines 5 to 8 (spec dp-scaffold 4.1, 4.6, 4.7). A silo sends the
mean direction of its steps. The step length is public, so the server computes the model's change from it, and with
control variates theirs too. One vector thus replaces the paper's two.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from fedcore.arrays import Vector


class AnsweringSilo(Protocol):
    """The part of a silo that local steps use (`fedcore.algorithms.method.Silo`)."""

    @property
    def ridge(self) -> float: ...

    def ask(self, kind: str, *arrays: Vector) -> Vector: ...


def local_step(step: float, sample: float, steps: int) -> float:
    """eta_l = eta_0 / max(1, round(s K)), from the authors' code.

    It is the paper's eta_0 / (s K) where s K is a whole number.
    """
    return step / max(1, round(sample * steps))


def mean_direction(
    silo: AnsweringSilo, w: Vector, steps: int, step: float, correction: Vector | None = None, prox: float = 0.0
) -> Vector:
    """Mean over `steps` local steps from w of their directions before correction (d,).

    A direction is a noised gradient plus the gradients of the ridge term and of prox (y - w), which depend on no
    record. Each step goes along direction + correction, so the last local model is
    `w - steps * step * (mean + correction)`. Several silos' answers and corrections are rows (silos, d).
    """
    y, total = w, np.zeros_like(w)
    for _ in range(steps):
        direction = silo.ask("gradient", y)
        if silo.ridge:
            direction = direction + silo.ridge * y
        if prox:
            direction = direction + prox * (y - w)
        total = total + direction
        if correction is not None:
            direction = direction + correction
        y = y - step * direction
    return total / steps


def mean_at(silo: AnsweringSilo, w: Vector, steps: int) -> Vector:
    """Mean of `steps` noised gradients at w itself, with the ridge term's (d,); the silo does not move."""
    return mean_direction(silo, w, steps, 0.0)
