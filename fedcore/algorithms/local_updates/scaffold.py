"""DP-SCAFFOLD: local noisy SGD with control variates against drift between heterogeneous silos.

Noble, Bellet and Dieuleveut, "Differentially Private Federated Learning on Heterogeneous Data", AISTATS 2022. Algorithm
1 and its warm start (spec dp-scaffold 4.1, 4.2); without noise the SCAFFOLD of Karimireddy et al. 2020.
"""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.algorithms.local_updates.local_steps import LocalSteps
from fedcore.algorithms.method import Silo
from fedcore.arrays import Arrays, Matrix, Vector
from fedcore.hyperparameters import DECLARED, Count
from fedcore.optim.averaging import Messages, mean_message
from fedcore.optim.local import mean_at, mean_direction
from fedcore.optim.model_average import moved
from fedcore.planning.phase import Phase
from fedcore.planning.phases.local_phase import local_phases
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem
from fedcore.state import State


@plain_dataclass(frozen=True)
class ScaffoldState(State):
    """State of the server: functions of the silos' releases.

    `w`: the server's model (d,); `controls`: c_i of the silos (N, d), (0, d) before any answer; `control`: c (d,). c is
    always the mean of all c_i, by the silos' weights if there are any. Silos not seen yet have c_i = 0.
    """

    w: Vector
    control: Vector
    controls: Matrix


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class Scaffold(LocalSteps):
    """Each round: K local steps along the noised gradient - c_i + c, then means over silos.

    The means are of models and of control variates. Silos store nothing. Each receives c - c_i, and sends the mean of
    its K noised gradients. The server computes both of the paper's messages from it, dy_i and dc_i.

    Warm start: the first rounds start the control variates. A silo answers the first time that it is drawn, with the
    mean of K gradients at the first model, which stays. With all silos in every round, one such round is enough.
    """

    name: Literal["scaffold"] = "scaffold"
    local_steps: Annotated[Count, Field(ge=1)] = 10
    """K, local steps of a silo in one round; each uses one answer about a sample of its own."""
    warm: bool = False
    """Start the control variates in the first round(4 N / M) rounds (one, if M = N), without moving the model. M is the
    expected number of silos in a round where it is drawn."""

    title: ClassVar[str] = "DP-SCAFFOLD: local noisy SGD with control variates"
    source: ClassVar[str] = "Noble, Bellet, Dieuleveut 2022, Algorithm 1"
    state: ClassVar[type[ScaffoldState]] = ScaffoldState
    sends_own_arrays: ClassVar[bool] = True

    def plan(self, problem: Problem) -> Plan:
        first = 0
        if self.warm:
            there = problem.participation
            first = 1 if there.full else round(4 * problem.n_silos / there.expected)
        settings = {"step": self.length, "global_step": self.global_step}
        phases = local_phases(problem, self.rounds, self.local_steps, self.sampling_rate, settings, first)
        question = replace(phases[-1].question, vectors_down=2)
        return Plan(problem, (*phases[:-1], replace(phases[-1], question=question)))

    def init(self, w0: Vector) -> ScaffoldState:
        return ScaffoldState(1, 1, w0, np.zeros_like(w0), np.empty((0, w0.size)))

    def broadcast(self, state: ScaffoldState, phase: Phase) -> Arrays:
        """The model and, in each silo's row, c - c_i; without c - c_i in the first phase of a warm start."""
        if phase.schedule.at_most_once:
            return {"w": state.w}
        return {"w": state.w, "correction": state.control - _controls(state, phase)}

    def silo_step(self, sent: Arrays, silo: Silo) -> Vector:
        """The silo's new control variate: the mean of its K noised gradients (equal to line 8 of Algorithm 1)."""
        if "correction" not in sent:
            return mean_at(silo, sent["w"], self.local_steps)
        return mean_direction(silo, sent["w"], self.local_steps, self.length, sent["correction"])

    def server_update(self, state: ScaffoldState, messages: Messages, phase: Phase) -> ScaffoldState:
        old = _controls(state, phase)
        w = state.w
        if not phase.schedule.at_most_once:
            # dy_i = -K eta_l (new c_i - c_i + c)
            w = moved(w, mean_message(_changes(messages, old)) + state.control, phase)
        controls, control = old.copy(), state.control
        for place, message in messages.items():
            weight = 1.0 if phase.weights is None else phase.weights[place]
            control = control + weight * (message - old[place]) / len(controls)
            controls[place] = message
        return ScaffoldState(*phase.following(state.round), w, control, controls)

    def output(self, state: ScaffoldState) -> Vector:
        return state.w

    @property
    def steps(self) -> int:
        return self.local_steps


def _controls(state: ScaffoldState, phase: Phase) -> Matrix:
    """c_i of all silos (N, d)."""
    return state.controls if len(state.controls) else np.zeros((len(phase.shares), state.w.size))


def _changes(messages: Messages, controls: Matrix) -> Messages:
    """dc_i of the participants (d,)."""
    return messages.changed({place: message - controls[place] for place, message in messages.items()})
