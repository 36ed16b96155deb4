"""DP-FedSGD: DP-FedAvg with about one pass over a silo's records per round.

Noble, Bellet and Dieuleveut 2022, Section 5 ("K s = 1", the experiments; spec dp-scaffold 4.4). Section 2 of the paper
describes FedSGD as one local update instead: `local_steps: one`.
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
class Fedsgd:
    """`fedavg` with K = round(1/s) local steps (`epoch`), or with one (`one`); the other keys are those of `fedavg`."""

    name: Literal["fedsgd"] = "fedsgd"
    rounds: Annotated[Count, Field(ge=1)] | None = 100
    local_steps: Literal["epoch", "one"] = "epoch"
    sampling_rate: Annotated[Real, Field(gt=0, le=1)] = 0.2
    step: Annotated[Real, Field(gt=0)] = 1.0
    global_step: Annotated[Real, Field(gt=0)] = 1.0

    title: ClassVar[str] = "DP-FedSGD: DP-FedAvg with one local pass"
    source: ClassVar[str] = "Noble, Bellet, Dieuleveut 2022, Section 5"
    state: ClassVar[type[ModelState]] = ModelState

    def plan(self, problem: Problem) -> Plan:
        settings = {"step": self._step, "global_step": self.global_step}
        return Plan(problem, local_phases(problem, self.rounds, self._steps, self.sampling_rate, settings))

    def init(self, w0: Vector) -> ModelState:
        return ModelState(1, 1, w0)

    def broadcast(self, state: ModelState, phase: Phase) -> Arrays:
        return {"w": state.w}

    def silo_step(self, sent: Arrays, silo: Silo) -> Vector:
        """The mean direction of the local steps."""
        return mean_direction(silo, sent["w"], self._steps, self._step)

    def server_update(self, state: ModelState, messages: Messages, phase: Phase) -> ModelState:
        return model_average_update(state, messages, phase)

    def output(self, state: ModelState) -> Vector:
        return state.w

    @property
    def _steps(self) -> int:
        return 1 if self.local_steps == "one" else round(1.0 / self.sampling_rate)

    @property
    def _step(self) -> float:
        return local_step(self.step, self.sampling_rate, self._steps)
