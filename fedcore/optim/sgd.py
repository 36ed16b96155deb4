"""Projected SGD over phases, with an average of the iterates: the server side of the plain methods.

Source: spec localized-isrl-dp 6.4: `w_{r+1} = Pi(w_r - step (g + lambda_i (w_r - w_{i-1})))`. The returned model is the
uniform average of w_1..w_R, the last iterate, or the theorems' average of w_0..w_{R-1}. The theorems are Lowy and
Razaviyayn's (spec isrl-dp-fl 6.1 and 5.3). The regulariser depends on no record: the server adds it unclipped
(`optim.regularised`, with the problem's ridge term).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedcore.arrays import Vector
from fedcore.optim.averaging import running_mean
from fedcore.optim.projection import onto_domain
from fedcore.optim.regularised import regularised
from fedcore.planning.phase import Phase
from fedcore.state import State

Average = Literal["uniform", "last"]
TheoremsAverage = Literal["uniform", "last", "theory"]
"""theory: weights `gamma_r = (1 - mu step)^-(r+1)` of w_r, r = 0..R-1, mu the strong convexity; equal for mu = 0."""


@dataclass(frozen=True)
class SgdState(State):
    """`w`: iterate; `centre`: the phase's first model; `mean`: mean of this phase's iterates (all (d,))."""

    w: Vector
    centre: Vector
    mean: Vector

    @classmethod
    def start(cls, w0: Vector) -> SgdState:
        return cls(phase=1, round=1, w=w0, centre=w0, mean=np.zeros_like(w0))

    def model(self, average: TheoremsAverage) -> Vector:
        """The model so far: within a phase its average or last iterate, at its start the phase's centre."""
        return self.w if self.round == 1 or average == "last" else self.mean


def sgd_update(state: SgdState, gradient: Vector, phase: Phase, average: TheoremsAverage) -> SgdState:
    """The state after one step along the mean message; `phase.settings["step"]` is the step length."""
    step = phase.settings["step"]
    direction = regularised(gradient, state.w, state.centre, phase)
    w = onto_domain(state.w - step * direction, phase.subproblem.diameter, state.centre, phase.subproblem.radius)
    if average == "theory":
        mean = state.mean + (state.w - state.mean) / weight_sum(state.round, phase.subproblem.mu * step)
    else:
        mean = running_mean(state.mean, state.round - 1, w)
    if state.round < phase.rounds:
        return replace(state, round=state.round + 1, w=w, mean=mean)
    model = w if average == "last" else mean
    return SgdState(phase=phase.index + 1, round=1, w=model, centre=model, mean=np.zeros_like(model))


def weight_sum(count: int, fall: float) -> float:
    """Gamma / gamma of the first `count` of the theorem's weights: 1 + q + ... + q^(count - 1).

    Here q = 1 - `fall`, with `fall` = mu step, at least 0 and below 1. Then `mean <- mean + (w - mean) / sum` is the
    weighted average, also where the weights themselves overflow. The recursion S <- 1 + q S from 0 gives the same
    number.
    """
    return float(count) if fall == 0.0 else -math.expm1(count * math.log1p(-fall)) / fall
