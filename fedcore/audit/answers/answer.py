"""What the instruments know of one kind of answer, apart from the code under test."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from fedcore.arrays import Matrix, Vector
from fedcore.planning.problem import Problem


class Sum(NamedTuple):
    """One exact sum as the silo was about to make it: about w (d,), places of the shard (None: all), shifts."""

    w: Vector
    chosen: np.ndarray | None
    shifts: Vector | None


class AuditedAnswer(Protocol):
    """One kind of answer in one plan. Records are given as features X (n, p), bias column included, and labels y (n,).

    `features`: p. `classes`: of the labels; None where they are real numbers. `allowed`: about the norm of a record
    whose part of a sum at `start` is as long as clipping allows. `silent`: whether a record without features adds
    nothing. `drawn`: whether parts depend on points that the silo draws.
    """

    features: int
    classes: int | None
    allowed: float
    silent: bool
    drawn: bool
    watched: ClassVar[type[Any]]
    """The silo's answer, which also notes in a list `notes` of `Sum` what its sums are about."""

    @property
    def start(self) -> Vector:
        """The first model (d,)."""
        ...

    @property
    def about(self) -> Vector:
        """What the first query is about: `start`, or that and the model before it, one after the other (2 d,)."""
        ...

    @property
    def no_canaries(self) -> str | None:
        """Why a one-run audit cannot be made of such answers; None if it can."""
        ...

    def parts(self, w: Vector, X: Matrix, y: Vector, shifts: Vector | None = None) -> Matrix:
        """What each record adds to an exact sum about w (n, d). `shifts` (n,): of the points that the silo drew."""
        ...

    def folded(self, total: Vector) -> Vector:
        """The exact sum (numbers,) of records whose parts add up to `total` (d,): that, unless it
        is a function of it."""
        ...

    def loud(self, norm: float) -> float:
        """The norm of a record whose part of an answer to the first query would be about as long as `norm`, or longer,
        if nothing clipped it; in the unit of that query."""
        ...

    def farthest(self, x: Vector, y: float) -> tuple[Vector, float]:
        """Features and label of a record whose part of the first answer is far from that of (x, y)."""
        ...

    def extremes(self) -> tuple[tuple[Vector, Vector], ...]:
        """Features of two records whose parts are about as far apart as any two; none where `farthest` finds them."""
        ...

    def elsewhere(self, problem: Problem) -> Problem:
        """Another problem, whose plan has another digest and whose answers are alike."""
        ...
