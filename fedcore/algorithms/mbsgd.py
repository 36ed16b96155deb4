"""Multi-pass noisy minibatch SGD.

Lowy and Razaviyayn, "Private Federated Learning Without a Trusted Server: Optimal Algorithms for Convex Losses", ICLR
2023. Algorithm 1, with a tuned constant step, or by Theorems 2.1 and 2.2 (spec isrl-dp-fl 6.1 and 6.2; spec
localized-isrl-dp 7.8).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.algorithms.projected_sgd import ProjectedSgd
from fedcore.errors import InputError
from fedcore.hyperparameters import DECLARED, Count, Factor
from fedcore.optim.sgd import TheoremsAverage
from fedcore.planning.batches import Batch, minibatch_sgd_batch
from fedcore.planning.phases.training_phase import make_phase
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem
from fedcore.planning.theorems.minibatch import sgd_batch, sgd_beta, sgd_envelope, sgd_rounds, sgd_step


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class Mbsgd(ProjectedSgd):
    """Every round uses all records, or a secret sample, of every participating silo; one phase.

    With `trust: none` this is full-batch projected gradient descent. Numbers left to the theorem follow its strongly
    convex case where `model.ridge` > 0, else its convex case. The noise keeps its own calibration.
    """

    name: Literal["mbsgd"] = "mbsgd"
    average: TheoremsAverage = "uniform"
    """The model: the uniform average of w_1..w_R, the last iterate, or the theorem's average of w_0..w_{R-1}, which has
    growing weights with a ridge."""
    step: Annotated[Factor, Field(gt=0)] | Literal["theory"] = 4.0
    """Length of a step along the mean gradient, squared weight per loss; theory: the theorem's for R rounds."""
    rounds: Annotated[Count, Field(ge=1)] | None = 40
    """R, communication rounds; null: the theorem's."""
    batch: Batch = None
    """K, expected records of an answer of the smallest silo (Poisson samples; the paper draws with replacement); null:
    all records; theory: the theorem's least K for R rounds."""

    title: ClassVar[str] = "multi-pass noisy minibatch SGD"
    source: ClassVar[str] = "Lowy, Razaviyayn 2023, Algorithm 1"
    takes_given_noise: ClassVar[bool] = True
    takes_aggregator: ClassVar[bool] = True

    @property
    def from_theory(self) -> tuple[str, ...]:
        left = [key for key in ("batch", "step", "average") if getattr(self, key) == "theory"]
        return tuple(left) if self.rounds is not None else (*left, "rounds")

    def plan(self, problem: Problem) -> Plan:
        whole = {silo.name: (0, silo.trained) for silo in problem.silos}
        rounds = sgd_rounds(problem, sgd_beta(problem, self.name), self.batch) if self.rounds is None else self.rounds
        K = self.batch
        if K == "theory":
            K = minibatch_sgd_batch(problem, rounds) if self.rounds is not None else sgd_batch(problem, rounds)
        phase = make_phase(problem, 1, rounds, whole, batch=K)
        step = sgd_step(problem, phase, sgd_beta(problem, self.name)) if self.step == "theory" else self.step
        if self.average == "theory" and not phase.subproblem.mu * step < 1:
            raise InputError(
                f"algorithm.average = theory needs a step below 1 / model.ridge = {1 / phase.subproblem.mu:g}, and "
                f"algorithm.step is {step:g}"
            )
        return Plan(problem, (replace(phase, settings={"step": step}),))

    def envelope(self, problem: Problem) -> float | None:
        if self.rounds is not None and self.step != "theory":
            return None
        return sgd_envelope(problem, self.rounds, self.batch)
