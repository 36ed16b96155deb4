"""The shared part of localized methods: numbers of their phases, given or left to the theorem.

Source: Gao, Lowy, Zhou and Wright 2024, Algorithms 1 and 4 (`fedcore.planning.theorems.localization`).
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from fedcore.algorithms.method import Traits
from fedcore.hyperparameters import DECLARED, Count, Factor
from fedcore.limits import MOST_LISTED
from fedcore.planning.batches import Batch
from fedcore.planning.theorems.localization import Schedule, check_schedule

Listed = Annotated[tuple[Annotated[Count, Field(ge=1)], ...], Field(max_length=MOST_LISTED)]


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class Localized(Traits):
    """Phases on shards: phase i uses shard i of each silo's records, near the model of phase i-1.

    Each shard is half as long as the one before.
    """

    rounds: Annotated[Count, Field(ge=1)] | Listed | None = None
    """R of each phase: one number, or one per phase with the last repeated; null: the theorem's R_i."""
    lam: Annotated[Factor, Field(gt=0)] | None = None
    """lambda, loss per squared weight, of the first phase's regulariser around its centre; null: the theorem's."""
    exponent: Annotated[Factor, Field(ge=0)] | None = None
    """p: lambda grows by 2^p from phase to phase; null: the theorem's, at least 3."""
    max_phases: Annotated[Count, Field(ge=1)] | None = None
    """Largest number of phases; null: floor(log2 n). Stopping early costs nothing in privacy."""
    batch: Batch = None
    """K, expected records of an answer of the smallest shard, in phases with more (Poisson samples; the paper draws
    with replacement); null: all records; theory: the paper's K_i, where it has one for the method."""
    schedule: Schedule = None
    """theory refuses numbers that the theorem chooses; manual needs rounds and lam; null: either source, number by
    number."""

    @property
    def from_theory(self) -> tuple[str, ...]:
        left = [key for key in ("rounds", "lam") if getattr(self, key) is None]
        return (*left, "batch") if self.batch == "theory" else tuple(left)

    @model_validator(mode="after")
    def _scheduled(self) -> Self:
        return check_schedule(self)
