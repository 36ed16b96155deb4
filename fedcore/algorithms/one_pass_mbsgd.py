"""One-pass noisy minibatch SGD: each record is used in one round only.

The baseline of Gao, Lowy, Zhou and Wright (ICML 2024), who name it without pseudo-code; spec localized-isrl-dp 7.8. R
rounds use fresh disjoint blocks of floor(n / R) records. Disjoint blocks compose in parallel, so each round's Gaussian
noise is for the full (epsilon, delta). Published noise: Lowy and Razaviyayn, ICLR 2023 (one-pass form).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.algorithms.projected_sgd import ProjectedSgd
from fedcore.hyperparameters import DECLARED, Count, Factor
from fedcore.optim.sgd import Average
from fedcore.planning.phases.training_phase import check_blocks, make_phase
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class OnePassMbsgd(ProjectedSgd):
    """Round r uses the r-th block of each silo; a silo not drawn in round r leaves it unused.

    (The spec would let such a silo keep the block for later; a block tied to its round keeps silos without state.)
    """

    name: Literal["one-pass-mbsgd"] = "one-pass-mbsgd"
    average: Average = "uniform"
    step: Annotated[Factor, Field(gt=0)] = 4.0
    """Length of a step along the mean gradient, squared weight per loss."""
    rounds: Annotated[Count, Field(ge=1)] = 8
    """R, communication rounds; each takes a block of floor(n / R) records of every silo."""

    title: ClassVar[str] = "one-pass noisy minibatch SGD"
    source: ClassVar[str] = "baseline of Gao, Lowy, Zhou, Wright 2024; Lowy, Razaviyayn 2023, one-pass form"
    takes_given_noise: ClassVar[bool] = True

    def plan(self, problem: Problem) -> Plan:
        check_blocks(problem, self.rounds)
        whole = {silo.name: (0, silo.trained) for silo in problem.silos}
        phase = make_phase(problem, 1, self.rounds, whole, blocks=self.rounds, settings={"step": self.step})
        return Plan(problem, (phase,))
