"""The shared part of DIFF2's methods: a running private estimate of the gradient, from differences.

Murata and Suzuki, "DIFF2: Differential Private Optimization via Gradient Differences for Nonconvex Distributed
Learning", ICML 2023. Algorithm 1 (spec diff2, 3.2 and 8).
"""

from __future__ import annotations

import math
from dataclasses import dataclass as plain_dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.accounting.published.papers import renyi_order
from fedcore.algorithms.method import Silo, Traits
from fedcore.arrays import Arrays, Vector
from fedcore.hyperparameters import DECLARED, Count, Factor, Seed
from fedcore.optim.averaging import Messages, mean_message
from fedcore.optim.projection import onto_domain
from fedcore.optim.regularised import regularised
from fedcore.planning.phase import Phase
from fedcore.planning.phases.restarts import planned_cycle
from fedcore.planning.problem import Problem
from fedcore.planning.questions.question import DifferenceQuestion
from fedcore.planning.theorems.cycle import Cycle
from fedcore.state import State


@plain_dataclass(frozen=True)
class EstimateState(State):
    """State of DIFF2's server; all arrays (d,).

    `w`: iterate x_r; `before`: x_(r-1); `estimate`: noised estimate of the gradient there; `drawn`: the iterate that
    the theorem returns, x_0 until its round.
    """

    w: Vector
    before: Vector
    estimate: Vector
    drawn: Vector


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class RunningEstimate(Traits):
    """Every T-th round replaces the estimate by noised gradients; others add noised differences.

    A difference is of gradients along the last step, clipped and noised in proportion to the step's length. All silos
    take part in each round. The paper's W is unbounded; here models stay in the ball of `model.diameter`. A large
    diameter removes that bound.
    """

    rounds: Annotated[Count, Field(ge=1)] = 100
    """R, communication rounds."""
    step: Annotated[Factor, Field(gt=0)] = 0.5
    """eta, squared weight per loss: length of a step along the estimate."""
    slope: Annotated[Factor, Field(gt=0)] = 1.0
    """C_2, loss per squared weight: bound on the difference of one record's gradients, per unit of the last step's
    length. Its counterpart for gradients is model.clip (C_1)."""
    period: Annotated[Count, Field(ge=1)] | Literal["theory"] | None = None
    """T, rounds from one restart to the next; 1: DP-GD; theory: that of Theorem 4.3, without its constant; null: the
    shortest with little noise on restarts, else the best for this step by Proposition D.2 (`theorems.restarts`)."""
    split: Annotated[Factor, Field(gt=0, lt=1)] | None = None
    """v, part of the budget (of mu squared) for restarts; 0.8: the paper's u = 1.25; null: the best by Proposition D.2,
    or 0.8 with privacy.calibration = paper."""
    model: Literal["last", "drawn"] = "last"
    """last: x_R; drawn: the model that the theorem returns, drawn uniformly from x_0 .. x_(R-1) by `draw`."""
    draw: Seed = 0
    """Public seed of the drawn model."""

    asks: ClassVar[tuple[str, ...]] = ("gradient", DifferenceQuestion.kind)
    takes_nonconvex: ClassVar[bool] = True
    row_by_row: ClassVar[bool] = True
    takes_given_noise: ClassVar[bool] = True
    takes_aggregator: ClassVar[bool] = True
    needs_all_silos: ClassVar[bool] = True

    def cycle(self, problem: Problem, part: float = 1.0, steps: int = 1) -> Cycle:
        """The cycle of restarts and differences with this part of the budget and this many steps in a round."""
        return planned_cycle(problem, self.rounds, self.period, self.split, self.slope, self.step, part, steps)

    def broadcast_to_all(self, state: EstimateState, phase: Phase) -> Arrays:
        """The model and, in a round of differences, the one before."""
        if phase.at(state.round).question.kind == DifferenceQuestion.kind:
            return {"w": state.w, "before": state.before}
        return {"w": state.w}

    def silo_step(self, sent: Arrays, silo: Silo) -> Vector:
        if "before" in sent:
            return silo.ask(DifferenceQuestion.kind, sent["w"], sent["before"])
        return silo.ask("gradient", sent["w"])

    def shown(self, phase: Phase) -> dict[str, float]:
        """alpha, the Renyi order of the paper's calibration for the phase's target; empty without a target."""
        if phase.noise.target is None:
            return {}
        return {"alpha": renyi_order(phase.noise.target, min(share.delta for share in phase.shares))}

    def curve(self, before: EstimateState, after: EstimateState, phase: Phase) -> dict[str, float]:
        """Numbers of a round of all silos; empty for local steps, whose lengths are not released.

        restart: 1 if the round restarts; step_norm: |x_(r-1) - x_(r-2)|; clip: the bound on one record's part, C_1 or
        C_2 times that length; noise: standard deviation per coordinate on the mean over all silos; norm: of the
        estimate.
        """
        kind = phase.at(before.round)
        if kind.schedule.in_turn:
            return {}
        length = float(np.linalg.norm(before.w - before.before))
        unit = length if kind.question.kind == DifferenceQuestion.kind else 1.0
        return {
            "estimate/restart": float(kind.question.kind != DifferenceQuestion.kind),
            "estimate/step_norm": length,
            "estimate/clip": kind.question.clip * unit,
            "estimate/noise": math.sqrt(kind.mean_noise) * unit,
            "estimate/norm": float(np.linalg.norm(after.estimate)),
        }

    def estimated(self, state: EstimateState, messages: Messages, phase: Phase) -> tuple[Vector, Vector]:
        """The estimate at the state's iterate, and the end of a step along it, within the domain (d,)."""
        estimate = mean_message(messages)
        if phase.at(state.round).question.kind == DifferenceQuestion.kind:
            estimate += state.estimate
        stepped = state.w - phase.settings["step"] * regularised(estimate, state.w, state.w, phase)
        return estimate, onto_domain(stepped, phase.subproblem.diameter, state.w, phase.subproblem.radius)
