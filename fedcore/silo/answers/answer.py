"""What an answer is: a sum over records of one bounded part each, and how far one record can move it.

The silo does the rest alike for all of them: it checks that the plan charges for the sum, draws the sample, adds noise
of the planned event, divides by the public count, and commits charge and bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

import numpy as np

from fedcore.accounting.events import GaussianRelease
from fedcore.arrays import Matrix, Vector
from fedcore.mechanisms.grid import Grid
from fedcore.models import Objective
from fedcore.planning.phase import Phase
from fedcore.planning.problem import Problem

Draw = Callable[[str], np.random.Generator]
"""A generator under the run's key for one answer and a purpose."""


Sums = Callable[..., list[Vector] | None]
"""Of what is asked, the sum (d,) of each part in an array of its own; None if parts have to be summed one by one."""


@dataclass
class Piece:
    """Records of one privacy event, as views of the run's at the positions `at`. `count`: what sums are divided by,
    public. `noise`: standard deviation on the sum. `grid`: where a guarded silo's sums lie.
    """

    event: GaussianRelease
    at: slice
    X: Matrix
    y: Vector
    count: float
    noise: float
    grid: Grid | None


class Answer(Protocol):
    """One kind of answer, at one run: an object holds what it needs of all records, in the order of the run's split."""

    name: ClassVar[str]
    samples: ClassVar[bool]
    """Whether it may be about a sample of the records."""

    @classmethod
    def misfit(cls, problem: Problem, loss: Objective | None, n: int, features: int) -> str | None:
        """Why n records of so many features do not fit the agreed numbers, as a public sentence; None if they do."""
        ...

    @classmethod
    def half_diameter(cls, problem: Problem, phase: Phase) -> float:
        """C such that replacing one record moves the sum by at most 2 C in norm, whatever is asked."""
        ...

    @classmethod
    def largest_norm(cls, problem: Problem, phase: Phase) -> float:
        """Of one record's part of the sum; C where parts are centred at zero."""
        ...

    @classmethod
    def of(cls, problem: Problem, loss: Objective | None, X: Matrix, y: Vector, record_bound: float) -> Self:
        """For the records X (n, p), y (n,) of a run, none of which is longer than `record_bound`."""
        ...

    @classmethod
    def together(cls, parts: Sequence[tuple[Self, Piece]]) -> Sums | None:
        """Sums over the pieces of several silos of one run in one pass, with the bits of `sum` for each alone; None if
        this kind has no such pass."""
        ...

    def sum(self, phase: Phase, piece: Piece, chosen: np.ndarray | None, draw: Draw, *asked: Vector) -> Vector:
        """The exact sum (d,) over the piece, or over the records at its places `chosen`, about what was `asked`.

        No error and no duration may depend on records: `asked` is what a method makes of arrays that were checked.
        """
        ...
