"""Multi-pass noisy minibatch subgradient method, for nonsmooth losses.

Gao, Lowy, Zhou and Wright, "Private Heterogeneous Federated Learning Without a Trusted Server Revisited", ICML 2024.
Algorithm 3 alone, on all records in one phase (spec localized-isrl-dp 6.3, Q8, Q12). The paper runs it inside the
phases of Algorithm 4 only, where the objective is strongly convex; here the regulariser's weight is ours.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.algorithms.subgradient import Subgradient
from fedcore.hyperparameters import DECLARED, Count, Factor
from fedcore.optim.subgradient import queries
from fedcore.planning.batches import Batch, no_theory
from fedcore.planning.phases.training_phase import make_phase
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class MbSubgradient(Subgradient):
    """Every round uses all records, or a secret sample, of every participating silo; one phase.

    Steps need no tuning. `lam: null` takes `4 B / (D sqrt(R + 1))` less the ridge, or 0. That minimises the sum of two
    terms. One is the price of lambda, `lambda (D/2)^2 / 2`, w_0 being the centre of W. The other is Algorithm 3's
    bound, `2 B^2 / ((lambda + ridge) (R + 1))`. Here `B^2 = L^2 + d sigma^2 / M` with L of the objective, and
    `clip^2 / (M K)` more with samples of K.
    """

    name: Literal["mb-subgradient"] = "mb-subgradient"
    rounds: Annotated[Count, Field(ge=1)] = 40
    """R of the method's bound."""
    lam: Annotated[Factor, Field(gt=0)] | None = None
    """Weight of (lambda/2) |w - w_0|^2, loss per squared weight, which makes the objective strongly convex; null: the
    minimiser of the sum of its price and the method's bound."""
    batch: Batch = None
    """K, expected records of an answer of the smallest silo (Poisson samples); null: all records. theory is refused: no
    theorem is about Algorithm 3 alone."""

    title: ClassVar[str] = "multi-pass noisy minibatch subgradient method"
    source: ClassVar[str] = "Gao, Lowy, Zhou, Wright 2024, Algorithm 3 (weight of the regulariser ours)"

    def plan(self, problem: Problem) -> Plan:
        if self.batch == "theory":
            raise no_theory(self.name)
        whole = {silo.name: (0, silo.trained) for silo in problem.silos}
        phase = make_phase(problem, 1, queries(self.rounds, self.index), whole, batch=self.batch)
        lam = self.lam
        if lam is None:
            second_moment = (
                problem.objective.lipschitz**2 + problem.objective.dim * phase.sigma**2 / problem.harmonic_participants
            )
            if phase.rate < 1:
                second_moment += problem.objective.clip**2 / (problem.harmonic_participants * phase.batch)
            lam = max(
                4.0 * math.sqrt(second_moment / (self.rounds + 1)) / problem.objective.diameter
                - problem.objective.ridge,
                0.0,
            )
        return Plan(problem, (replace(phase, subproblem=replace(phase.subproblem, lam=lam)),))
