"""Multi-pass noisy minibatch SGD.

Lowy and Razaviyayn, "Private Federated Learning Without a Trusted Server: Optimal Algorithms for Convex Losses",
ICLR 2023, Algorithm 1, with a tuned constant step (spec isrl-dp-fl 6.1; spec localized-isrl-dp 7.8).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.algorithms.projected_sgd import ProjectedSgd
from fedcore.hyperparameters import DECLARED, Count, Real
from fedcore.planning.batches import Batch, minibatch_sgd_batch
from fedcore.planning.phase import make_phase
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class Mbsgd(ProjectedSgd):
    """Every round uses all records of every participating silo, or a secret sample; one phase, no localization.

    With `trust: none` this is full-batch projected gradient descent. The average is over w_1..w_R; the paper's
    Algorithm 1 averages w_0..w_{R-1}, whose first iterate is the start.
    """

    name: Literal["mbsgd"] = "mbsgd"
    step: Annotated[Real, Field(gt=0)] = 4.0
    """Length of a step along the mean gradient, squared weight per loss."""
    rounds: Annotated[Count, Field(ge=1)] = 40
    """R, communication rounds."""
    batch: Batch = None
    """K, records of an answer of the smallest silo, expected (Poisson samples; the paper draws with replacement); null:
    all records; theory: the theorem's least K for R rounds."""

    title: ClassVar[str] = "multi-pass noisy minibatch SGD"
    source: ClassVar[str] = "Lowy, Razaviyayn 2023, Algorithm 1"
    takes_given_noise: ClassVar[bool] = True

    @property
    def from_theory(self) -> tuple[str, ...]:
        return ("batch",) if self.batch == "theory" else ()

    def plan(self, problem: Problem) -> Plan:
        whole = {silo.name: (0, silo.trained) for silo in problem.silos}
        K = minibatch_sgd_batch(problem, self.rounds) if self.batch == "theory" else self.batch
        phase = make_phase(problem, 1, self.rounds, whole, batch=K, settings={"step": self.step})
        return Plan(problem, (phase,))
