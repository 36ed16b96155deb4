"""Interface of the auditor's model of one kind of answer, independent of the code under test."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from fedcore.arrays import Matrix, Vector
from fedcore.planning.problem import Problem


class Sum(NamedTuple):
    """One exact sum before the silo computes it: about w (d,), places of the shard (None: all), shifts."""

    w: Vector
    chosen: np.ndarray | None
    shifts: Vector | None


class AuditedAnswer(Protocol):
    """The auditor's model of one kind of answer in one plan.

    Records are features X (n, p), bias column included, and labels y (n,). `features`: p. `classes`: number of classes;
    None for real labels. `allowed`: approximate norm of a record whose part of a sum at `start` is as long as clipping
    allows. `silent`: true if a record without features adds nothing. `drawn`: true if parts depend on points that the
    silo draws.
    """

    features: int
    classes: int | None
    allowed: float
    silent: bool
    drawn: bool
    watched: ClassVar[type[Any]]
    """The silo's answer class, extended by a list `notes` of a `Sum` for each exact sum."""

    @property
    def start(self) -> Vector:
        """The first model (d,)."""
        ...

    @property
    def about(self) -> Vector:
        """Vector of the first query: `start`, or that followed by the previous model (2 d,)."""
        ...

    @property
    def no_canaries(self) -> str | None:
        """Reason why a one-run audit of such answers is impossible; None if it is possible."""
        ...

    def parts(self, w: Vector, X: Matrix, y: Vector, shifts: Vector | None = None) -> Matrix:
        """Each record's part of an exact sum about w (n, d). `shifts` (n,): of the points that the silo drew."""
        ...

    def folded(self, total: Vector) -> Vector:
        """The exact sum (numbers,) of records whose parts add up to `total` (d,): a function of it."""
        ...

    def loud(self, norm: float) -> float:
        """Norm of a record whose unclipped part of the first answer is about `norm` long, or longer.

        In the unit of that query.
        """
        ...

    def farthest(self, x: Vector, y: float) -> tuple[Vector, float]:
        """Features and label of a record whose part of the first answer is far from that of (x, y)."""
        ...

    def extremes(self) -> tuple[tuple[Vector, Vector], ...]:
        """Features of two records whose parts are about as far apart as any; empty if `farthest` suffices."""
        ...

    def elsewhere(self, problem: Problem) -> Problem:
        """Another problem, whose plan has another digest and whose answers are alike."""
        ...
