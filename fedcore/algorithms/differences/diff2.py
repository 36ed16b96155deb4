"""DIFF2-GD: gradient descent along a running private estimate of the gradient; T = 1 is DP-GD.

Murata and Suzuki, "DIFF2: Differential Private Optimization via Gradient Differences for Nonconvex Distributed
Learning", ICML 2023. Algorithm 1 with the GD routine (spec diff2, 3.3).
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from fedcore.algorithms.differences.running_estimate import EstimateState, RunningEstimate
from fedcore.arrays import Arrays, Vector
from fedcore.hyperparameters import DECLARED
from fedcore.optim.averaging import Messages
from fedcore.planning.phase import Phase
from fedcore.planning.phases.difference_phase import difference_phase
from fedcore.planning.phases.restarts import cycle_settings, drawn_place
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class Diff2(RunningEstimate):
    """One step along the estimate in each round; without noise gradient descent, whatever the period."""

    name: Literal["diff2"] = "diff2"

    title: ClassVar[str] = "DIFF2-GD: descent along differences of gradients"
    source: ClassVar[str] = "Murata, Suzuki 2023, Algorithm 1"
    state: ClassVar[type[EstimateState]] = EstimateState

    def plan(self, problem: Problem) -> Plan:
        cycle = self.cycle(problem)
        settings = {"step": self.step, "rounds": self.rounds, "drawn": drawn_place(self.draw, self.rounds)}
        phase = difference_phase(problem, cycle, self.slope, settings)
        return Plan(problem, (replace(phase, settings=settings | cycle_settings(problem, phase, cycle, self.slope)),))

    def init(self, w0: Vector) -> EstimateState:
        return EstimateState(1, 1, w0, w0, w0 * 0.0, w0)

    def broadcast(self, state: EstimateState, phase: Phase) -> Arrays:
        return self.broadcast_to_all(state, phase)

    def server_update(self, state: EstimateState, messages: Messages, phase: Phase) -> EstimateState:
        estimate, w = self.estimated(state, messages, phase)
        # The drawn model is x_(r-1), where the round's step began.
        drawn = state.w if state.round == phase.settings["drawn"] else state.drawn
        return EstimateState(*phase.following(state.round), w, state.w, estimate, drawn)

    def output(self, state: EstimateState) -> Vector:
        return state.w if self.model == "last" else state.drawn
