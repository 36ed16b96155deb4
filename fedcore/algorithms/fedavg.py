"""DP-FedAvg: averages of models after local noisy SGD steps.

Noble, Bellet and Dieuleveut, "Differentially Private Federated Learning on Heterogeneous Data", AISTATS 2022,
Algorithm 2 (spec dp-scaffold 4.3); without noise the FedAvg of McMahan et al. 2017.
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
class Fedavg:
    """Each round: K local steps on fresh samples of floor(s n) records, then the mean of the silos' models.

    `rounds`: T; None takes the largest that keeps to privacy.epsilon with privacy.noise_multiplier. `step`: eta_0, the
    local step length is eta_0 / max(1, round(s K)). `global_step`: eta_g. The model is the last one. The paper's W is
    unbounded; here models stay in the ball of `model.diameter`, so give it a large one to have none.
    """

    name: Literal["fedavg"] = "fedavg"
    rounds: Annotated[Count, Field(ge=1)] | None = 100
    local_steps: Annotated[Count, Field(ge=1)] = 10
    sampling_rate: Annotated[Real, Field(gt=0, le=1)] = 0.2
    step: Annotated[Real, Field(gt=0)] = 1.0
    global_step: Annotated[Real, Field(gt=0)] = 1.0

    title: ClassVar[str] = "DP-FedAvg: averaged models after local noisy SGD"
    source: ClassVar[str] = "Noble, Bellet, Dieuleveut 2022, Algorithm 2"
    state: ClassVar[type[ModelState]] = ModelState

    def plan(self, problem: Problem) -> Plan:
        settings = {"step": self._step, "global_step": self.global_step}
        return Plan(problem, local_phases(problem, self.rounds, self.local_steps, self.sampling_rate, settings))

    def init(self, w0: Vector) -> ModelState:
        return ModelState(1, 1, w0)

    def broadcast(self, state: ModelState, phase: Phase) -> Arrays:
        return {"w": state.w}

    def silo_step(self, sent: Arrays, silo: Silo) -> Vector:
        """The mean direction of the local steps: the paper's change of the model over -K eta_l."""
        return mean_direction(silo, sent["w"], self.local_steps, self._step)

    def server_update(self, state: ModelState, messages: Messages, phase: Phase) -> ModelState:
        return model_average_update(state, messages, phase)

    def output(self, state: ModelState) -> Vector:
        return state.w

    @property
    def _step(self) -> float:
        return local_step(self.step, self.sampling_rate, self.local_steps)
