"""Localized ISRL-DP minibatch SGD.

Gao, Lowy, Zhou and Wright, "Private Heterogeneous Federated Learning Without a Trusted Server Revisited", ICML 2024:
Algorithm 1 with plain noisy minibatch SGD inside each phase, the method of the paper's experiments (their step rule and
averaging are not printed; spec localized-isrl-dp 6.4 and 7.7 are followed).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from fedcore.algorithms.projected_sgd import ProjectedSgd
from fedcore.hyperparameters import DECLARED, Count, Real
from fedcore.planning.batches import Batch, no_theory
from fedcore.planning.localization import (
    Schedule,
    check_schedule,
    localization,
    pieces,
    rounds_of,
    starting_gap,
    theory_rounds,
)
from fedcore.planning.phase import make_phase
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class LocalizedMbsgd(ProjectedSgd):
    """Phase i: noisy SGD on piece i of each silo, held near the model of phase i-1.

    `step`: length for the mean gradient; a phase uses 1 / (1/step + lambda_i + ridge). `rounds`: of each phase, one
    number or one per phase; None takes the theorem's R_i. `lam`, `exponent`: lambda and p, None takes the theorem's.
    `batch`: K, records of an answer of the smallest piece that are expected (Poisson samples), in phases that have more
    of them; None takes all. `theory` is refused: the paper's K is for the accelerated solver's number of rounds.
    `schedule`: `theory` refuses numbers by hand but the step, which the paper does not give; `manual` needs them.
    """

    name: Literal["localized-mbsgd"] = "localized-mbsgd"
    step: Annotated[Real, Field(gt=0)] = 4.0
    rounds: Annotated[Count, Field(ge=1)] | tuple[Annotated[Count, Field(ge=1)], ...] | None = None
    lam: Annotated[Real, Field(gt=0)] | None = None
    exponent: Annotated[Real, Field(ge=0)] | None = None
    max_phases: Annotated[Count, Field(ge=1)] | None = None
    batch: Batch = None
    schedule: Schedule = None

    title: ClassVar[str] = "localized ISRL-DP minibatch SGD"
    source: ClassVar[str] = "Gao, Lowy, Zhou, Wright 2024, Algorithm 1 with minibatch SGD (its experiments)"

    @property
    def from_theory(self) -> tuple[str, ...]:
        left = [key for key in ("rounds", "lam") if getattr(self, key) is None]
        return (*left, "batch") if self.batch == "theory" else tuple(left)

    _scheduled = model_validator(mode="after")(check_schedule)

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
                    pieces(problem, local.index),
                    lam=local.lam,
                    radius=local.radius,
                    batch=self.batch,
                    settings={"step": 1.0 / (1.0 / self.step + local.lam + problem.ridge)},
                )
            )
        return Plan(problem, tuple(phases))
