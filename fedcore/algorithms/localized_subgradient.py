"""Localized ISRL-DP minibatch subgradient method, for nonsmooth losses.

Gao, Lowy, Zhou and Wright, "Private Heterogeneous Federated Learning Without a Trusted Server Revisited", ICML 2024.
Algorithm 4 with Algorithm 3 inside each phase (Theorem 3.5; spec localized-isrl-dp 7.5 and 6.3, Q8, Q10, Q12, Q20).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from fedcore.algorithms.localized import Localized
from fedcore.algorithms.subgradient import Subgradient
from fedcore.hyperparameters import DECLARED
from fedcore.optim.subgradient import queries
from fedcore.planning.batches import least_batch
from fedcore.planning.phases.training_phase import make_phase
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem
from fedcore.planning.theorems.complexity import subgradient_complexity
from fedcore.planning.theorems.localization import rounds_of, shards, subgradient_localization, subgradient_rounds


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class LocalizedSubgradient(Localized, Subgradient):
    """Phase i: noisy subgradient method on shard i, near the model of phase i-1.

    The domain is W and the ball of radius 2 L / lambda_i around that model, with lambda_i = lambda n 2^(i p) / n_i.
    Steps are 2 / ((lambda_i + ridge) (r + 1)) and need no tuning. `batch: theory` takes the paper's K_i, the least that
    its formula for noise allows. Deviation: null takes full batches, K_i = n_i; exact noise hardly depends on K_i, and
    more records only lower the variance.
    """

    name: Literal["localized-subgradient"] = "localized-subgradient"

    title: ClassVar[str] = "localized ISRL-DP minibatch subgradient method"
    source: ClassVar[str] = "Gao, Lowy, Zhou, Wright 2024, Algorithms 4 and 3"

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
                    shards(problem, local.index),
                    lam=local.lam,
                    radius=local.radius,
                    batch=least_batch(problem, local.n, rounds) if self.batch == "theory" else self.batch,
                )
            )
        return Plan(problem, tuple(phases), subgradient_complexity(problem))
