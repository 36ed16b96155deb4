"""The server side of accelerated methods: three sequences, one answer at the middle one, restarts.

Sources: Lowy and Razaviyayn 2023, Algorithm 2 (spec isrl-dp-fl 6.3 and 6.4). Gao, Lowy, Zhou and Wright 2024,
Algorithms 2 and 5 (spec localized-isrl-dp 6.1 and 6.2), the same steps. The mean is over the participants (E10).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic.dataclasses import dataclass

from fedcore.algorithms.method import Silo, Traits
from fedcore.arrays import Arrays, Vector
from fedcore.hyperparameters import DECLARED
from fedcore.optim.acceleration import AccelerationCoefficients
from fedcore.optim.averaging import Messages, mean_message
from fedcore.optim.projection import onto_domain
from fedcore.optim.regularised import regularised
from fedcore.planning.curvature import KnownCurvature
from fedcore.planning.phase import Phase
from fedcore.planning.problem import Problem
from fedcore.planning.stages import Stage, position
from fedcore.state import State


@plain_dataclass(frozen=True)
class AcceleratedState(State):
    """`w`: iterate; `aggregate`: w_ag, the solver's answer; `centre`: the phase's first model (all (d,))."""

    w: Vector
    aggregate: Vector
    centre: Vector


def stage_settings(stages: Sequence[Stage], variance: float, gap: float | None = None) -> dict[str, Any]:
    """`Phase.settings` of a solver with these stages, their variance V^2 and, if given, their gap Delta."""
    settings: dict[str, Any] = {} if gap is None else {"gap": gap}
    return settings | {"variance": variance, "stages": [[stage.rounds, stage.upsilon] for stage in stages]}


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class Accelerated(KnownCurvature, Traits):
    """Config keys and functions of methods whose phases have `stage_settings`."""

    state: ClassVar[type[AcceleratedState]] = AcceleratedState
    row_by_row: ClassVar[bool] = True

    if TYPE_CHECKING:  # a field of each method

        @property
        def name(self) -> str: ...

    def beta(self, problem: Problem) -> float:
        """Smoothness of the objective, ridge included, for the stages.

        It is the known one, else the worst case's. Raises InputError if there is none.
        """
        return self.known(problem).objective.smoothness_for(self.name)

    def init(self, w0: Vector) -> AcceleratedState:
        return AcceleratedState(phase=1, round=1, w=w0, aggregate=w0, centre=w0)

    def broadcast(self, state: AcceleratedState, phase: Phase) -> Arrays:
        coefficients, w = _coefficients(state, phase)
        return {"w": coefficients.middle(state.aggregate, w)}

    def silo_step(self, sent: Arrays, silo: Silo) -> Vector:
        return silo.ask("gradient", sent["w"])

    def server_update(self, state: AcceleratedState, messages: Messages, phase: Phase) -> AcceleratedState:
        coefficients, previous = _coefficients(state, phase)
        middle = coefficients.middle(state.aggregate, previous)
        gradient = regularised(mean_message(messages), middle, state.centre, phase)
        w = onto_domain(
            coefficients.unprojected(middle, previous, gradient),
            phase.subproblem.diameter,
            state.centre,
            phase.subproblem.radius,
        )
        alpha = coefficients.alpha
        aggregate = alpha * w + (1.0 - alpha) * state.aggregate
        if state.round < phase.rounds:
            return replace(state, round=state.round + 1, w=w, aggregate=aggregate)
        return AcceleratedState(phase.index + 1, 1, w=aggregate, aggregate=aggregate, centre=aggregate)

    def output(self, state: AcceleratedState) -> Vector:
        return state.aggregate


def _coefficients(state: AcceleratedState, phase: Phase) -> tuple[AccelerationCoefficients, Vector]:
    """Coefficients of the state's round, and the previous iterate: a new stage restarts at the aggregate."""
    stages = tuple(Stage(rounds, upsilon) for rounds, upsilon in phase.settings["stages"])
    stage, r = position(stages, state.round)
    w = state.aggregate if r == 1 else state.w
    return AccelerationCoefficients.at(r, stage.upsilon, phase.subproblem.mu), w
