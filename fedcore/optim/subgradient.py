"""The projected subgradient method for a strongly convex objective, with linearly growing weights in its average.

Source: Gao et al. 2024, Algorithm 3 (spec localized-isrl-dp 6.3): w_{r+1} = Pi(w_r - gamma_r g), g a subgradient of the
regularised objective, gamma_r = 2/(mu (r+1)) for r = 0..R-1; returned model 2/(R(R+1)) (w_1 + 2 w_2 + ... + R w_R).
mu is the objective's strong convexity: lambda, as published, plus the problem's ridge.
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
        """The state before a phase's first round; the mean of no iterate is the start, which is its model so far."""
        return cls(phase=phase, round=1, w=w0, centre=w0, mean=w0)


def queries(rounds: int, index: Index) -> int:
    """Rounds that ask the silos, of R in the bound: all by the paper's index, one less by the textbook's (at least 1).

    The textbook starts its count at w_1, the given point. The paper's first step, of length 2/lambda, only makes some
    other w_1, on which the bound does not depend: one query is wasted.
    """
    return rounds if index == "paper" else max(rounds - 1, 1)


def subgradient_update(state: SubgradientState, gradient: Vector, phase: Phase, index: Index) -> SubgradientState:
    """The state after one step along the mean message (d,), which the server regularises, unclipped.

    Round q of a phase makes the iterate w_k with weight k, k = q by the paper's index and q + 1 by the textbook's.
    """
    k = state.round + (index == "textbook")
    direction = regularised(gradient, state.w, state.centre, phase)
    w = onto_domain(
        state.w - 2.0 / (phase.subproblem.mu * k) * direction,
        phase.subproblem.diameter,
        state.centre,
        phase.subproblem.radius,
    )
    # k over 1 + ... + k. At k = 1 nothing is left of the mean; at k = 2 it is the start, w_1 of the textbook.
    mean = state.mean + (w - state.mean) * (2.0 / (k + 1)) if k > 1 else w
    if state.round < phase.rounds:
        return replace(state, round=state.round + 1, w=w, mean=mean)
    return SubgradientState.start(mean, phase.index + 1)
