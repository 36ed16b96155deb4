"""Multi-pass noisy minibatch SGD.

Lowy and Razaviyayn, "Private Federated Learning Without a Trusted Server: Optimal Algorithms for Convex Losses",
ICLR 2023, Algorithm 1, with a tuned constant step (spec isrl-dp-fl 6.1; spec localized-isrl-dp 7.8).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.algorithms.method import Silo
from fedcore.arrays import Arrays, Vector
from fedcore.hyperparameters import DECLARED, Count, Real
from fedcore.optim.averaging import Messages, mean_message
from fedcore.optim.sgd import Average, SgdState, sgd_update
from fedcore.planning.batches import Batch, minibatch_sgd_batch
from fedcore.planning.plan import Phase, Plan, make_phase
from fedcore.planning.problem import Problem


@dataclass(frozen=True, config=DECLARED)
class Mbsgd:
    """Every round uses all records of every participating silo, or a secret sample; one phase, no localization.

    `batch`: K, records of an answer of the smallest silo that are expected (Poisson samples; the paper draws with
    replacement); None takes all of them, `theory` the theorem's least K for R rounds.
    With `trust: none` this is full-batch projected gradient descent. The average is over w_1..w_R; the paper's
    Algorithm 1 averages w_0..w_{R-1}, whose first iterate is the start.
    """

    name: Literal["mbsgd"] = "mbsgd"
    step: Annotated[Real, Field(gt=0)] = 4.0
    rounds: Annotated[Count, Field(ge=1)] = 40
    average: Average = "uniform"
    batch: Batch = None

    title: ClassVar[str] = "multi-pass noisy minibatch SGD"
    source: ClassVar[str] = "Lowy, Razaviyayn 2023, Algorithm 1"
    state: ClassVar[type[SgdState]] = SgdState

    def plan(self, problem: Problem) -> Plan:
        whole = {silo.name: (0, silo.n) for silo in problem.silos}
        K = minibatch_sgd_batch(problem, self.rounds) if self.batch == "theory" else self.batch
        phase = make_phase(problem, 1, self.rounds, whole, batch=K, settings={"step": self.step})
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
