"""The interface of an answer: a sum over records of one bounded part each, and a bound on the effect of one record.

An answer may also be a function of such a sum, such as an eigenvalue, that one record moves by at most as much.

The silo treats all kinds alike. It checks that the plan charges for the sum, and draws the sample. It adds noise of the
planned event, divides by the public count, and commits charge and bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
"""Returns the generator, under the run's key, of one answer's draws for a named purpose."""


Sums = Callable[..., Matrix | None]
"""Maps a question's arrays to the sums (shards, d), in a new array; None: sum shards one by one."""


@dataclass
class Shard:
    """Records of one privacy event, as views of the run's rows `at`.

    `count`: public divisor of sums. `noise`: standard deviation on the sum. `grid`: of a guarded silo's sums.

    Where the unit of privacy is a person, each has `places` consecutive rows, filled or not. `weights` (rows,) multiply
    a row's part after clipping. They sum to at most 1 over a person, and are 0 at empty places. None: each row is a
    record of weight 1.
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
        """Blocks in which the rows are summed, as slices of the shard."""
        return blocks_of(len(self.y), block_rows(self.X.shape[1], self.places))

    def summed(self, part: Callable[[Shard, slice], Vector]) -> Vector:
        """Sum over the rows by `fedcore.summation`, with whole persons in each block.

        `part`: the sum of a block in a new array. It receives the block as a shard of its own and as a slice of this
        one, and treats each row independently of the others. A shard of one block is passed unchanged.
        """
        if len(self.blocks) == 1:
            return part(self, self.blocks[0])
        start = self.at.start

        def of_block(rows: slice) -> Vector:
            weights = None if self.weights is None else self.weights[rows]
            at = slice(start + rows.start, start + rows.stop)
            return part(self.of_rows(self.X[rows], self.y[rows], weights, at), rows)

        return tree_sum(self.blocks, of_block)

    def of_rows(self, X: Matrix, y: Vector, weights: Vector | None, at: slice | None = None) -> Shard:
        """Other rows of this event; `at`: None leaves it. `dataclasses.replace` takes ten times as long."""
        at = self.at if at is None else at
        return Shard(self.event, at, X, y, self.count, self.noise, self.grid, weights, self.places)

    def predicted(self, w: Vector) -> Vector:
        """X w (rows,), computed block by block so that a row has the same bits as in its block's sum."""
        blocks = self.blocks
        return self.X @ w if len(blocks) == 1 else np.concatenate([self.X[rows] @ w for rows in blocks])

    @property
    def n(self) -> int:
        """Number of records, or of persons where these are the unit of privacy."""
        return len(self.y) // self.places

    def rows(self, chosen: np.ndarray) -> np.ndarray:
        """Rows of the records, or persons, at the positions `chosen` in the shard."""
        return rows_of(chosen, self.places)


def weights_misfit(problem: Problem, loss: Objective, features: int) -> str | None:
    """Public sentence if records of so many features need another number of weights than the problem; else None."""
    held = model_of(loss).weights(features)
    return (
        None
        if problem.objective.dim == held
        else f"the plan says {problem.objective.dim} weights, its records have {held}"
    )


def rows_of(chosen: np.ndarray, places: int) -> np.ndarray:
    """Rows of the records, or persons, at positions `chosen`, each with `places` consecutive rows."""
    if places == 1:
        return chosen
    rows: np.ndarray = (chosen[:, None] * places + np.arange(places)).ravel()
    return rows


class Answer(Protocol):
    """One kind of answer in one run. An object holds what it precomputes from all records, in the run's order."""

    name: ClassVar[str]
    samples: ClassVar[bool]
    """It may be computed on a sample of the records."""
    weighs: ClassVar[bool]
    """Its sum multiplies each row's bounded part by `Shard.weights`; a silo of persons gives no other. Each class
    declares this itself: the value is not inherited."""

    @classmethod
    def misfit(cls, problem: Problem, loss: Objective | None, n: int, features: int) -> str | None:
        """Public sentence if n rows of so many features do not fit the agreed numbers; else None."""
        ...

    @classmethod
    def scale(cls, problem: Problem, *arrays: Vector) -> float:
        """Factor >= 0 of the phase's sensitivity, noise and grid for this question: 1, or the unit they are in.

        Public: it depends on no record.
        """
        ...

    @classmethod
    def half_diameter(cls, problem: Problem, phase: Phase) -> float:
        """C such that replacing one record, or one person, moves the sum by at most 2 C in norm, in units of `scale`.

        The bound for records holds for persons: the mean of a person's parts lies in their convex hull.
        """
        ...

    @classmethod
    def largest_norm(cls, problem: Problem, phase: Phase) -> float:
        """Largest norm of one record's part, so that n records sum to at most n times it; C for centred parts."""
        ...

    @classmethod
    def of(cls, problem: Problem, loss: Objective | None, X: Matrix, y: Vector, record_bound: float) -> Self:
        """The answer of a run on records X (n, p), y (n,), each of norm at most `record_bound`."""
        ...

    @classmethod
    def batched(cls, parts: Sequence[tuple[Self, Shard]]) -> Sums | None:
        """Sums over shards of several silos of one run in one pass, with the bits of `sum` for each; None: no pass."""
        ...

    def sum(self, phase: Phase, shard: Shard, chosen: np.ndarray | None, draw: Draw, *arrays: Vector) -> Vector:
        """Sum (d,) over the shard, or over its records (persons) at positions `chosen`, for a question's `arrays`.

        Computed by `Shard.summed`, whose rounding the charge covers. `arrays` are the method's, made from checked ones.
        No error and no duration may depend on records.
        """
        ...
