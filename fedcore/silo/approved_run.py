"""A run that a silo agreed to: its terms and key, and the silo's records in the run's order."""

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
    """An approved run. `X` (rows, p), `y` and `weights` (rows,): as in `Records`, in the order of the run's split.

    The silo's `keys` derive that order from the run's `key`; a person moves with all of its rows. `named`: SHA-256 of
    the run's id and its plan. `answers`: those that the plan needs, by kind. `lease`: number of the lease under which
    the driver had the run approved.
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
