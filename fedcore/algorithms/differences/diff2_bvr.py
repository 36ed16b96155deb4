"""DIFF2-BVR-L-SGD: DIFF2 with variance-reduced local steps of one silo after each round of all.

Murata and Suzuki, "DIFF2: Differential Private Optimization via Gradient Differences for Nonconvex Distributed
Learning", ICML 2023. Algorithms 1 and 4 as the spec corrects them (spec diff2, 3.4, A1, A2, E1 and E2).
"""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from hashlib import blake2b
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.algorithms.differences.running_estimate import EstimateState, RunningEstimate
from fedcore.algorithms.method import Silo
from fedcore.arrays import Arrays, Vector
from fedcore.hyperparameters import DECLARED, Count, Factor
from fedcore.optim.averaging import Messages
from fedcore.optim.projection import onto_domain
from fedcore.planning.phase import Phase
from fedcore.planning.phases.local_difference_phase import PAPER_PART, LocalSteps, local_difference_phase
from fedcore.planning.phases.restarts import cycle_settings, drawn_place
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem
from fedcore.planning.questions.question import DifferenceQuestion


@plain_dataclass(frozen=True)
class LocalEstimateState(EstimateState):
    """`stepped`: x_(1,r-1), where the acting silo begins, before its turn; otherwise equal to `w` (d,)."""

    stepped: Vector


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class Diff2Bvr(RunningEstimate):
    """After each step along the estimate one silo, in turn, takes K - 1 further steps along it.

    For each step the silo adds to the estimate a clipped and noised difference of gradients, about a sample of its
    records. Two rounds here are one of the paper's: all silos, then the silo whose turn it is. That silo adds the noise
    of its local steps itself, also where an aggregator is trusted. The next difference of all silos covers the move of
    these steps.
    """

    name: Literal["diff2-bvr"] = "diff2-bvr"
    local_steps: Annotated[Count, Field(ge=2)] = 5
    """K, steps of a round, of which the acting silo takes K - 1."""
    batch: Annotated[Count, Field(ge=1)] = 16
    """b, records of a local step, drawn anew without replacement for each."""
    local_slope: Annotated[Factor, Field(gt=0)] | None = None
    """C_3, the bound for local steps as C_2 is for rounds of all silos; null: C_2, as in the paper's theory."""
    local_part: Annotated[Factor, Field(ge=1e-9, lt=1)] = 1.0 / 3.0
    """Part 1 - f of the budget (of mu squared) for local steps; with the paper's noise it is 1/3."""

    title: ClassVar[str] = "DIFF2-BVR-L-SGD: differences of gradients and variance-reduced local steps"
    source: ClassVar[str] = "Murata, Suzuki 2023, Algorithms 1 and 4"
    state: ClassVar[type[LocalEstimateState]] = LocalEstimateState
    several_answers: ClassVar[bool] = True
    sends_own_arrays: ClassVar[bool] = True
    vectors_up: ClassVar[int] = 2
    sends_sums: ClassVar[bool] = False

    def plan(self, problem: Problem) -> Plan:
        part = PAPER_PART if problem.budget.calibration == "paper" else 1.0 - self.local_part
        cycle = self.cycle(problem, part, self.local_steps)
        local = LocalSteps(self.local_steps, self.batch, self.local_slope or self.slope)
        settings = {"step": self.step, "rounds": 2 * self.rounds, "drawn": 2 * drawn_place(self.draw, self.rounds)}
        phase = local_difference_phase(problem, cycle, self.slope, local, settings)
        return Plan(problem, (replace(phase, settings=settings | cycle_settings(problem, phase, cycle, self.slope)),))

    def init(self, w0: Vector) -> LocalEstimateState:
        return LocalEstimateState(1, 1, w0, w0, w0 * 0.0, w0, w0)

    def broadcast(self, state: LocalEstimateState, phase: Phase) -> Arrays:
        """Arrays for silos: as without local steps, or the acting silo's two models and estimate.

        In its turn a silo receives x_(1,r-1), x_(0,r-1) and, in a row that others do not receive, the estimate.
        """
        if not phase.at(state.round).schedule.in_turn:
            return self.broadcast_to_all(state, phase)
        estimate = np.broadcast_to(state.estimate, (len(phase.shares), state.estimate.size))
        return {"w": state.stepped, "before": state.w, "estimate": estimate}

    def silo_step(self, sent: Arrays, silo: Silo) -> Vector:
        """The acting silo's x_(K,r-1) and x_(k-1,r-1), k uniform on 1 .. K, one after the other (2 d,)."""
        if "estimate" not in sent:
            return super().silo_step(sent, silo)
        return local_trajectory(silo, sent["w"], sent["before"], sent["estimate"], self.local_steps, self.step)

    def server_update(self, state: LocalEstimateState, messages: Messages, phase: Phase) -> LocalEstimateState:
        at = phase.following(state.round)
        if not phase.at(state.round).schedule.in_turn:
            estimate, stepped = self.estimated(state, messages, phase)
            return LocalEstimateState(*at, state.w, state.before, estimate, state.drawn, stepped)
        (message,) = messages.values()
        last, out = (
            onto_domain(each, phase.subproblem.diameter, state.w, phase.subproblem.radius)
            for each in np.split(message, 2)
        )
        drawn = out if state.round == phase.settings["drawn"] else state.drawn
        return LocalEstimateState(*at, last, state.w, state.estimate, drawn, last)

    def output(self, state: LocalEstimateState) -> Vector:
        return state.stepped if self.model == "last" else state.drawn


def local_trajectory(silo: Silo, w: Vector, before: Vector, estimate: Vector, steps: int, step: float) -> Vector:
    """x_K and x_(k-1) of steps from x_1 = `w`, x_0 = `before`, one after another (2 d,).

    `estimate`: of the gradient at x_0. k is drawn by a hash of the query. Everyone who knows the query knows k, and no
    record influences it.
    """
    points = [before, w]
    for _ in range(steps - 1):
        estimate = estimate + silo.ask(DifferenceQuestion.kind, points[-1], points[-2])
        direction = estimate + silo.ridge * points[-1] if silo.ridge else estimate
        points.append(points[-1] - step * direction)
    digest = blake2b(w.tobytes() + before.tobytes(), digest_size=8).digest()
    return np.concatenate([points[-1], points[int.from_bytes(digest, "little") % steps]])
