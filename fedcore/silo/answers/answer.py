"""What an answer is: a sum over records of one bounded part each, and how far one record can move it; or a function of
such a sum, as an eigenvalue, which one record moves by as much at most.

The silo does the rest alike for all of them: it checks that the plan charges for the sum, draws the sample, adds noise
of the planned event, divides by the public count, and commits charge and bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Protocol, Self

import numpy as np

from fedcore.accounting.events import GaussianRelease
from fedcore.arrays import Matrix, Vector
from fedcore.draws.stream import Draws
from fedcore.mechanisms.grid import Grid
from fedcore.models import Objective, model_of
from fedcore.planning.phase import Phase
from fedcore.planning.problem import Problem
from fedcore.summation import block_rows, blocks_of, tree_sum

Draw = Callable[[str], np.random.Generator | Draws]
"""A generator under the run's key for one answer and a purpose."""


Sums = Callable[..., list[Vector] | None]
"""Of what is asked, the sum (d,) of each part in an array of its own; None if parts have to be summed one by one."""


@dataclass
class Shard:
    """Records of one privacy event, as views of the run's at the rows `at`. `count`: what sums are divided by,
    public. `noise`: standard deviation on the sum. `grid`: where a guarded silo's sums lie.

    Where the unit of privacy is a person, each has `places` rows, one after the other, whatever it fills of them, and
    `weights` (rows,) are what a row's part counts after it was bounded: they add up to at most 1 over a person, and are
    0 at places that are not filled. None: each row is a record, and counts 1.
    """

    event: GaussianRelease
    at: slice
    X: Matrix
    y: Vector
    count: float
    noise: float
    grid: Grid | None
    weights: Vector | None = None
    places: int = 1

    @cached_property
    def blocks(self) -> list[slice]:
        """Its rows by the blocks that sums are made of, as rows of the shard."""
        return blocks_of(len(self.y), block_rows(self.X.shape[1], self.places))

    def summed(self, part: Callable[[Shard, slice], Vector]) -> Vector:
        """The sum over its rows, as `fedcore.summation` has it: whole persons in each block.

        `part`: of a block, given as a shard of its own and as rows of this one, in a new array. What it does to a row
        depends on no other row. A shard of one block is given as it is.
        """
        if len(self.blocks) == 1:
            return part(self, self.blocks[0])
        start = self.at.start

        def of_block(rows: slice) -> Vector:
            weights = None if self.weights is None else self.weights[rows]
            at = slice(start + rows.start, start + rows.stop)
            return part(replace(self, at=at, X=self.X[rows], y=self.y[rows], weights=weights), rows)

        return tree_sum(self.blocks, of_block)

    def predicted(self, w: Vector) -> Vector:
        """X w (rows,), block by block: a row's last bits are those that its block's sum has."""
        blocks = self.blocks
        return self.X @ w if len(blocks) == 1 else np.concatenate([self.X[rows] @ w for rows in blocks])

    @property
    def n(self) -> int:
        """Records, or persons: what events, samples and counts are about."""
        return len(self.y) // self.places

    def rows(self, chosen: np.ndarray) -> np.ndarray:
        """The rows of the records, or persons, at the places `chosen` of the shard."""
        return rows_of(chosen, self.places)


def weights_misfit(problem: Problem, loss: Objective, features: int) -> str | None:
    """Why records of so many features make another model than the problem says, as a public
    sentence; None: they fit."""
    held = model_of(loss).weights(features)
    return (
        None
        if problem.objective.dim == held
        else f"the plan says {problem.objective.dim} weights, its records have {held}"
    )


def rows_of(chosen: np.ndarray, places: int) -> np.ndarray:
    """Rows of these records, or persons, where each has so many rows, one after the other."""
    if places == 1:
        return chosen
    rows: np.ndarray = (chosen[:, None] * places + np.arange(places)).ravel()
    return rows


class Answer(Protocol):
    """One kind of answer, at one run: an object holds what it needs of all records, in the order of the run's split."""

    name: ClassVar[str]
    samples: ClassVar[bool]
    """Whether it may be about a sample of the records."""
    weighs: ClassVar[bool]
    """Whether its sum multiplies each row's bounded part by `Shard.weights`; a silo of persons gives no other. Said by
    each class for itself."""

    @classmethod
    def misfit(cls, problem: Problem, loss: Objective | None, n: int, features: int) -> str | None:
        """Why n rows of so many features do not fit the agreed numbers, as a public sentence; None if they do."""
        ...

    @classmethod
    def scale(cls, problem: Problem, *asked: Vector) -> float:
        """What sensitivity, noise and grid of the phase's events are multiplied by for this question, at least 0: 1, or
        the unit that they are in. Public: it depends on no record.
        """
        ...

    @classmethod
    def half_diameter(cls, problem: Problem, phase: Phase) -> float:
        """C such that replacing one record, or one person, moves the sum by at most 2 C in norm, in units of `scale`.

        The mean of a person's parts is no longer than the longest of them, and as far from others' as they are.
        """
        ...

    @classmethod
    def largest_norm(cls, problem: Problem, phase: Phase) -> float:
        """Of the sum over one record, which n of them reach n times at most; C where parts are centred at zero."""
        ...

    @classmethod
    def of(cls, problem: Problem, loss: Objective | None, X: Matrix, y: Vector, record_bound: float) -> Self:
        """For the records X (n, p), y (n,) of a run, none of which is longer than `record_bound`."""
        ...

    @classmethod
    def batched(cls, parts: Sequence[tuple[Self, Shard]]) -> Sums | None:
        """Sums over the shards of several silos of one run in one pass, with the bits of `sum` for each alone; None if
        this kind has no such pass."""
        ...

    def sum(self, phase: Phase, shard: Shard, chosen: np.ndarray | None, draw: Draw, *asked: Vector) -> Vector:
        """The exact sum (d,) over the shard, or over the records (persons) at its places `chosen`, about what was
        `asked`: by `Shard.summed`, whose error the charge covers.

        No error and no duration may depend on records: `asked` is what a method makes of arrays that were checked.
        """
        ...
