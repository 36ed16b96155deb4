"""The projected subgradient method for strongly convex objectives, with a weighted average.

Source: Gao et al. 2024, Algorithm 3 (spec localized-isrl-dp 6.3): `w_{r+1} = Pi(w_r - gamma_r g)`. Here g is a
subgradient of the regularised objective, and gamma_r = 2/(mu (r+1)) for r = 0..R-1. The returned model is
`2/(R(R+1)) (w_1 + 2 w_2 + ... + R w_R)`. The strong convexity mu is lambda, as published, plus the problem's ridge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from fedcore.arrays import Vector
from fedcore.optim.projection import onto_domain
from fedcore.optim.regularised import regularised
from fedcore.planning.phase import Phase
from fedcore.state import State

Index = Literal["paper", "textbook"]


@dataclass(frozen=True)
class SubgradientState(State):
    """`w`: iterate; `centre`: model at the start of the phase; `mean`: weighted mean so far (all (d,))."""

    w: Vector
    centre: Vector
    mean: Vector

    @classmethod
    def start(cls, w0: Vector, phase: int = 1) -> SubgradientState:
        """The state before a phase's first round; its mean, the model so far, is the start."""
        return cls(phase=phase, round=1, w=w0, centre=w0, mean=w0)


def queries(rounds: int, index: Index) -> int:
    """Rounds that query the silos, for R in the bound.

    By the paper's index R, by the textbook's R - 1 (at least 1). The textbook starts its count at w_1, the given point.
    The paper's first step, of length 2/lambda, only makes some other w_1, on which the bound does not depend: one query
    is wasted.
    """
    return rounds if index == "paper" else max(rounds - 1, 1)


def subgradient_update(state: SubgradientState, gradient: Vector, phase: Phase, index: Index) -> SubgradientState:
    """The state after one step along the mean message (d,), which the server regularises unclipped.

    Round q of a phase makes the iterate w_k with weight k. By the paper's index k = q, by the textbook's k = q + 1.
    """
    k = state.round + (index == "textbook")
    direction = regularised(gradient, state.w, state.centre, phase)
    w = onto_domain(
        state.w - 2.0 / (phase.subproblem.mu * k) * direction,
        phase.subproblem.diameter,
        state.centre,
        phase.subproblem.radius,
    )
    # k over 1 + ... + k. At k = 1 the earlier mean has weight 0; at k = 2 it is the start, w_1 of the textbook.
    mean = state.mean + (w - state.mean) * (2.0 / (k + 1)) if k > 1 else w
    if state.round < phase.rounds:
        return replace(state, round=state.round + 1, w=w, mean=mean)
    return SubgradientState.start(mean, phase.index + 1)
