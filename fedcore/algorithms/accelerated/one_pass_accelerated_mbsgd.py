"""One-pass accelerated noisy minibatch SGD, for heterogeneous silos.

Lowy and Razaviyayn, "Private Federated Learning Without a Trusted Server: Optimal Algorithms for Convex Losses", ICLR
2023. The one-pass form of Algorithm 2, Theorem 2.3 (spec isrl-dp-fl 6.6; E14, E24).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.algorithms.accelerated.forms import AcceleratedForms
from fedcore.hyperparameters import DECLARED, Count
from fedcore.planning.batches import one_pass_batch
from fedcore.planning.phases.training_phase import check_blocks, make_phase
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class OnePassAcceleratedMbsgd(AcceleratedForms):
    """Round r uses the r-th block of each silo, at the middle sequence: one round per record.

    The bounds are on the population's risk, for silos of different distributions. A silo that is not drawn in round r
    leaves its r-th block unused. (The spec would let it keep the block, E24; a block tied to its round keeps silos
    without state.)
    """

    name: Literal["one-pass-accelerated-mbsgd"] = "one-pass-accelerated-mbsgd"
    rounds: Annotated[Count, Field(ge=1)] | None = None
    """R, communication rounds of all stages together. Each takes a block of floor(n / R) records of every silo. With
    all silos in every round, null takes floor(n / K) with the paper's K, which balances the terms of its bound."""

    title: ClassVar[str] = "one-pass accelerated noisy minibatch SGD"
    source: ClassVar[str] = "Lowy, Razaviyayn 2023, Algorithm 2 in its one-pass form (corrected)"
    takes_given_noise: ClassVar[bool] = True

    @property
    def from_theory(self) -> tuple[str, ...]:
        return ("rounds",) if self.rounds is None else ()

    def plan(self, problem: Problem) -> Plan:
        rounds, beta = self.rounds, self.beta(problem)
        if rounds is None:
            gap = self.starting_gap(problem) if self.strongly(problem) else None
            rounds = problem.n // one_pass_batch(problem, beta, gap)
        check_blocks(problem, rounds)
        whole = {silo.name: (0, silo.trained) for silo in problem.silos}
        return Plan(problem, (self.formed(problem, make_phase(problem, 1, rounds, whole, blocks=rounds)),))
