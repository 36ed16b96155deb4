"""What a silo keeps of a run that it agreed to: its terms and key, and its records in the run's order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedcore.algorithms import Method
from fedcore.arrays import Matrix, Vector
from fedcore.models import Objective
from fedcore.planning.plan import Plan
from fedcore.silo.answers import Answer


@dataclass(frozen=True)
class ApprovedRun:
    """`X` (n, p), `y` (n,): the records in the order of the run's split, which follows from its `key`.

    `named`: SHA-256 of the run's id and its plan. `answers`: by kind, those that the plan asks for.
    """

    plan: Plan
    method: Method[Any]
    loss: Objective | None
    key: bytes
    named: bytes
    X: Matrix
    y: Vector
    answers: dict[str, Answer]
