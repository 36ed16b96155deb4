"""Multi-pass accelerated noisy minibatch SGD.

Lowy and Razaviyayn, "Private Federated Learning Without a Trusted Server: Optimal Algorithms for Convex Losses", ICLR
2023. Algorithm 2 on all records, Theorems 2.4 and E.1 (spec isrl-dp-fl 6.3 to 6.5).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.algorithms.accelerated.forms import AcceleratedForms
from fedcore.hyperparameters import DECLARED, Count
from fedcore.planning.batches import Batch
from fedcore.planning.phases.training_phase import make_phase
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem
from fedcore.planning.theorems.minibatch import accelerated_batch, accelerated_envelope, accelerated_rounds


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class AcceleratedMbsgd(AcceleratedForms):
    """Each round uses all records, or a secret sample, of every participating silo.

    The query point is the middle sequence. Privacy is that of mbsgd: query points are functions of noisy messages.
    """

    name: Literal["accelerated-mbsgd"] = "accelerated-mbsgd"
    rounds: Annotated[Count, Field(ge=1)] | None = None
    """R, communication rounds of all stages together; null: the theorem's."""
    batch: Batch = None
    """K, expected records of an answer of the smallest silo (Poisson samples; the paper draws with replacement); null:
    all records; theory: the theorem's for R rounds."""

    title: ClassVar[str] = "multi-pass accelerated noisy minibatch SGD"
    source: ClassVar[str] = "Lowy, Razaviyayn 2023, Algorithm 2 (corrected)"
    takes_given_noise: ClassVar[bool] = True

    @property
    def from_theory(self) -> tuple[str, ...]:
        left = ("rounds",) if self.rounds is None else ()
        return (*left, "batch") if self.batch == "theory" else left

    def plan(self, problem: Problem) -> Plan:
        rounds, beta = self.rounds, self.beta(problem)
        if rounds is None:
            rounds = accelerated_rounds(problem, beta, self.starting_gap(problem), self.strongly(problem), self.batch)
        K = accelerated_batch(problem, rounds) if self.batch == "theory" else self.batch
        whole = {silo.name: (0, silo.trained) for silo in problem.silos}
        return Plan(problem, (self.formed(problem, make_phase(problem, 1, rounds, whole, batch=K)),))

    def envelope(self, problem: Problem) -> float | None:
        return accelerated_envelope(problem, self.rounds, self.strongly(problem), self.starting_gap(problem))
