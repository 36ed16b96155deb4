"""Localized ISRL-DP minibatch SGD.

Gao, Lowy, Zhou and Wright, "Private Heterogeneous Federated Learning Without a Trusted Server Revisited", ICML 2024.
Algorithm 1 with plain noisy minibatch SGD inside each phase, the method of the paper's experiments. Their step rule and
averaging are not published; spec localized-isrl-dp 6.4 and 7.7 are followed.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.algorithms.localized import Localized
from fedcore.algorithms.projected_sgd import ProjectedSgd
from fedcore.hyperparameters import DECLARED, Factor
from fedcore.optim.sgd import Average
from fedcore.planning.batches import no_theory
from fedcore.planning.phases.training_phase import make_phase
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem
from fedcore.planning.theorems.localization import localization, rounds_of, shards, starting_gap, theory_rounds


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class LocalizedMbsgd(Localized, ProjectedSgd):
    """Phase i: noisy SGD on shard i of each silo, held near the model of phase i-1.

    `batch: theory` is refused: the paper's K is for the accelerated solver's number of rounds. `schedule: theory` still
    takes `step` from the config, since the paper gives none.
    """

    name: Literal["localized-mbsgd"] = "localized-mbsgd"
    average: Average = "uniform"
    step: Annotated[Factor, Field(gt=0)] = 4.0
    """Length for the mean gradient, squared weight per loss; a phase uses 1 / (1/step + lambda_i + ridge)."""

    title: ClassVar[str] = "localized ISRL-DP minibatch SGD"
    source: ClassVar[str] = "Gao, Lowy, Zhou, Wright 2024, Algorithm 1 with minibatch SGD (its experiments)"

    def plan(self, problem: Problem) -> Plan:
        if self.batch == "theory":
            raise no_theory(self.name)
        phases = []
        for local in localization(problem, self.lam, self.exponent, self.max_phases):
            rounds = rounds_of(self.rounds, local.index)
            if rounds is None:
                rounds = theory_rounds(problem, local, starting_gap(problem, local.lam, "tight"), batch=self.batch)
            phases.append(
                make_phase(
                    problem,
                    local.index,
                    rounds,
                    shards(problem, local.index),
                    lam=local.lam,
                    radius=local.radius,
                    batch=self.batch,
                    settings={"step": 1.0 / (1.0 / self.step + local.lam + problem.objective.ridge)},
                )
            )
        return Plan(problem, tuple(phases))
