"""The shared part of methods that average the silos' models after local noisy SGD steps.

Noble, Bellet and Dieuleveut, "Differentially Private Federated Learning on Heterogeneous Data", AISTATS 2022. Algorithm
2 (spec dp-scaffold 4.3).
"""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedcore.algorithms.local_updates.local_steps import LocalSteps
from fedcore.algorithms.method import Silo
from fedcore.arrays import Arrays, Vector
from fedcore.hyperparameters import DECLARED
from fedcore.optim.averaging import Messages
from fedcore.optim.local import mean_direction
from fedcore.optim.model_average import ModelState, model_average_update
from fedcore.planning.phase import Phase
from fedcore.planning.phases.local_phase import local_phases
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class LocalAveraging(LocalSteps):
    """Each round: K local steps on fresh samples, then the mean of the silos' models.

    A sample has floor(s n) records. The last model is the result. The paper's W is unbounded; here models stay in the
    ball of `model.diameter`. A large diameter removes that bound.
    """

    state: ClassVar[type[ModelState]] = ModelState

    @property
    def pull(self) -> float:
        """Weight of the proximal term of local steps, loss per squared weight."""
        return 0.0

    @property
    def settings(self) -> dict[str, float]:
        """The method's numbers that its phases store."""
        return {"step": self.length, "global_step": self.global_step}

    def plan(self, problem: Problem) -> Plan:
        return Plan(problem, local_phases(problem, self.rounds, self.steps, self.sampling_rate, self.settings))

    def init(self, w0: Vector) -> ModelState:
        return ModelState(1, 1, w0)

    def broadcast(self, state: ModelState, phase: Phase) -> Arrays:
        return {"w": state.w}

    def silo_step(self, sent: Arrays, silo: Silo) -> Vector:
        """Mean direction of local steps, with proximal terms: the paper's change of the model over -K eta_l."""
        return mean_direction(silo, sent["w"], self.steps, self.length, prox=self.pull)

    def server_update(self, state: ModelState, messages: Messages, phase: Phase) -> ModelState:
        return model_average_update(state, messages, phase)

    def output(self, state: ModelState) -> Vector:
        return state.w
