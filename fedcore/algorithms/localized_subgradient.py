"""Localized ISRL-DP minibatch subgradient method, for losses with kinks.

Gao, Lowy, Zhou and Wright, "Private Heterogeneous Federated Learning Without a Trusted Server Revisited", ICML 2024:
Algorithm 4 with Algorithm 3 inside each phase (Theorem 3.5; spec localized-isrl-dp 7.5 and 6.3, Q8, Q10, Q12, Q20).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from fedcore.algorithms.subgradient import Subgradient
from fedcore.hyperparameters import DECLARED, Count, Real
from fedcore.optim.subgradient import queries
from fedcore.planning.batches import Batch, least_batch
from fedcore.planning.complexity import subgradient_complexity
from fedcore.planning.localization import (
    Schedule,
    check_schedule,
    pieces,
    rounds_of,
    subgradient_localization,
    subgradient_rounds,
)
from fedcore.planning.phase import make_phase
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class LocalizedSubgradient(Subgradient):
    """Phase i: noisy subgradient method on piece i, over W and the ball of radius 2 L / lambda_i around phase i-1.

    Its steps are 2 / ((lambda_i + ridge) (r + 1)) and need no tuning. `rounds`: R of each phase, one number or one per
    phase; None takes the theorem's R_i. `lam`, `exponent`: lambda and p, None takes the theorem's; a phase uses
    lambda_i = lambda n 2^(i p) / n_i. `index`: `textbook` asks once less in a phase, with the same bound.

    `batch`: K, records of an answer of the smallest piece that are expected (Poisson samples; the paper draws with
    replacement), in phases that have more of them; `theory` takes the paper's K_i, the least that its formula for noise
    allows. Deviation: None takes full batches, K_i = n_i; exact noise hardly depends on K_i, and more records only
    lower the variance. `schedule`: `theory` refuses numbers by hand, `manual` needs them.
    """

    name: Literal["localized-subgradient"] = "localized-subgradient"
    rounds: Annotated[Count, Field(ge=1)] | tuple[Annotated[Count, Field(ge=1)], ...] | None = None
    lam: Annotated[Real, Field(gt=0)] | None = None
    exponent: Annotated[Real, Field(ge=0)] | None = None
    max_phases: Annotated[Count, Field(ge=1)] | None = None
    batch: Batch = None
    schedule: Schedule = None

    title: ClassVar[str] = "localized ISRL-DP minibatch subgradient method"
    source: ClassVar[str] = "Gao, Lowy, Zhou, Wright 2024, Algorithms 4 and 3"

    _scheduled = model_validator(mode="after")(check_schedule)

    def plan(self, problem: Problem) -> Plan:
        phases = []
        for local in subgradient_localization(problem, self.lam, self.exponent, self.max_phases):
            rounds = rounds_of(self.rounds, local.index)
            if rounds is None:
                rounds = subgradient_rounds(problem, local)
            rounds = queries(rounds, self.index)
            phases.append(
                make_phase(
                    problem,
                    local.index,
                    rounds,
                    pieces(problem, local.index),
                    lam=local.lam,
                    radius=local.radius,
                    batch=least_batch(problem, local.n, rounds) if self.batch == "theory" else self.batch,
                )
            )
        return Plan(problem, tuple(phases), subgradient_complexity(problem))
