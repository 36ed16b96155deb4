"""DP-FedProx: DP-FedAvg whose local steps are pulled back to the model they started from.

Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated Optimization in Heterogeneous Networks", MLSys 2020,
Algorithm 2, with the noised local steps of Noble et al. 2022 (spec dp-scaffold 4.6, an extension of that paper).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.algorithms.method import Silo
from fedcore.arrays import Arrays, Vector
from fedcore.hyperparameters import DECLARED, Count, Real
from fedcore.optim.averaging import Messages
from fedcore.optim.local import local_step, mean_direction
from fedcore.optim.model_average import ModelState, model_average_update
from fedcore.planning.local_phase import local_phases
from fedcore.planning.plan import Phase, Plan
from fedcore.planning.problem import Problem


@dataclass(frozen=True, config=DECLARED)
class Fedprox:
    """`fedavg` whose local direction at y is the noised gradient plus prox_weight (y - x), x the round's model.

    `prox_weight`: mu_prox, in units of loss per squared weight; 0 is `fedavg`, bit for bit. It depends on no record, so
    it costs no privacy. Local steps are noisy SGD, not the inexact solver of the paper that the term is from.
    """

    name: Literal["fedprox"] = "fedprox"
    rounds: Annotated[Count, Field(ge=1)] | None = 100
    local_steps: Annotated[Count, Field(ge=1)] = 10
    sampling_rate: Annotated[Real, Field(gt=0, le=1)] = 0.2
    step: Annotated[Real, Field(gt=0)] = 1.0
    global_step: Annotated[Real, Field(gt=0)] = 1.0
    prox_weight: Annotated[Real, Field(ge=0)] = 0.1

    title: ClassVar[str] = "DP-FedProx: DP-FedAvg with a proximal term"
    source: ClassVar[str] = "Li et al. 2020, Algorithm 2, with the noise of Noble et al. 2022"
    state: ClassVar[type[ModelState]] = ModelState

    def plan(self, problem: Problem) -> Plan:
        settings = {"step": self._step, "global_step": self.global_step, "prox_weight": self.prox_weight}
        return Plan(problem, local_phases(problem, self.rounds, self.local_steps, self.sampling_rate, settings))

    def init(self, w0: Vector) -> ModelState:
        return ModelState(1, 1, w0)

    def broadcast(self, state: ModelState, phase: Phase) -> Arrays:
        return {"w": state.w}

    def silo_step(self, sent: Arrays, silo: Silo) -> Vector:
        """The mean direction of the local steps, proximal terms included."""
        return mean_direction(silo, sent["w"], self.local_steps, self._step, prox=self.prox_weight)

    def server_update(self, state: ModelState, messages: Messages, phase: Phase) -> ModelState:
        return model_average_update(state, messages, phase)

    def output(self, state: ModelState) -> Vector:
        return state.w

    @property
    def _step(self) -> float:
        return local_step(self.step, self.sampling_rate, self.local_steps)
