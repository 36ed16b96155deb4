"""What a silo keeps of a run that it agreed to: its terms and key, and its records in the run's order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedcore.algorithms import Method
from fedcore.arrays import Matrix, Vector
from fedcore.models import Objective
from fedcore.planning.plan import Plan
from fedcore.silo.answers import Answer
from fedcore.silo.keys import Keys


@dataclass(frozen=True)
class ApprovedRun:
    """`X` (rows, p), `y` and `weights` (rows,): as of `Records`, in the order of the run's split.

    It follows from the run's `key` by the silo's `keys`, and moves a person with all of its rows.

    `named`: SHA-256 of the run's id and its plan. `answers`: by kind, those that the plan asks for. `lease`: the number
    of the lease under which its driver had it approved.
    """

    plan: Plan
    method: Method[Any]
    loss: Objective | None
    keys: Keys
    key: bytes
    named: bytes
    X: Matrix
    y: Vector
    answers: dict[str, Answer]
    weights: Vector | None = None
    lease: int = 0
