"""One-pass noisy minibatch SGD: each record is used in one round only.

The baseline of Gao, Lowy, Zhou and Wright (ICML 2024), who name it without pseudo-code; spec localized-isrl-dp 7.8:
R rounds of fresh disjoint blocks of floor(n / R) records, Gaussian noise at the full (epsilon, delta) in every round,
since disjoint blocks compose in parallel. Noise of the printed kind: Lowy and Razaviyayn, ICLR 2023 (one-pass form).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.algorithms.method import Silo
from fedcore.arrays import Arrays, Vector
from fedcore.errors import InputError
from fedcore.hyperparameters import DECLARED, Count, Real
from fedcore.optim.averaging import Messages, mean_message
from fedcore.optim.sgd import Average, SgdState, sgd_update
from fedcore.planning.plan import Phase, Plan, make_phase
from fedcore.planning.problem import Problem


@dataclass(frozen=True, config=DECLARED)
class OnePassMbsgd:
    """Round r uses the r-th block of each silo; a silo that is not drawn in round r leaves its r-th block unused.

    (The spec would let such a silo keep the block for later; a block tied to its round keeps silos without state.)
    """

    name: Literal["one-pass-mbsgd"] = "one-pass-mbsgd"
    step: Annotated[Real, Field(gt=0)] = 4.0
    rounds: Annotated[Count, Field(ge=1)] = 8
    average: Average = "uniform"

    title: ClassVar[str] = "one-pass noisy minibatch SGD"
    source: ClassVar[str] = "baseline of Gao, Lowy, Zhou, Wright 2024; Lowy, Razaviyayn 2023, one-pass form"
    state: ClassVar[type[SgdState]] = SgdState

    def plan(self, problem: Problem) -> Plan:
        for silo in problem.silos:
            if silo.n < self.rounds:
                raise InputError(
                    f"silo {silo.name}: {silo.n} records cannot feed algorithm.rounds = {self.rounds} rounds of fresh "
                    f"blocks; lower algorithm.rounds to at most {problem.n}"
                )
        whole = {silo.name: (0, silo.n) for silo in problem.silos}
        phase = make_phase(problem, 1, self.rounds, whole, blocks=self.rounds, settings={"step": self.step})
        return Plan(problem, (phase,))

    def init(self, w0: Vector) -> SgdState:
        return SgdState.start(w0)

    def broadcast(self, state: SgdState, phase: Phase) -> Arrays:
        return {"w": state.w}

    def silo_step(self, sent: Arrays, silo: Silo) -> Vector:
        return silo.gradient(sent["w"])

    def server_update(self, state: SgdState, messages: Messages, phase: Phase) -> SgdState:
        return sgd_update(state, mean_message(messages), phase, self.average)

    def output(self, state: SgdState) -> Vector:
        return state.model(self.average)
