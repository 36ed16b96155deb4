"""Exact sums of the silos of one site that are asked the same question, computed in one pass over all of them.

A call per silo spends more time on calls than on records. What the pass does to one silo's records is what a call for
it alone does, bit for bit: their products are products of their own, and what is done to predictors is done to each
number by itself. A method may ask something else than what arrived (local steps do): then each silo is computed alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedcore.arrays import Vector
from fedcore.silo.answers import Answer, Shard, Sums

Part = tuple[Answer, Shard]
MOST_BLOCKS = 8
"""Of a silo's rows (`fedcore.summation`): the sums of all of them are in memory before their tree is made."""


@dataclass(frozen=True)
class Stack:
    """Silos that are summed together in a phase, and how."""

    silos: tuple[str, ...]
    sums: Sums

    @classmethod
    def of(cls, parts: Mapping[str, Part]) -> Stack | None:
        """None if there is one silo only, answers of this kind are not summed together, or are about samples.

        Sums of many blocks of rows, which are large enough by themselves, are left to be computed alone.
        """
        parts = {silo: part for silo, part in parts.items() if len(part[1].blocks) <= MOST_BLOCKS}
        kinds = {type(answer) for answer, _ in parts.values()}
        if len(parts) < 2 or len(kinds) > 1 or any(shard.event.sampling != "full" for _, shard in parts.values()):
            return None
        sums = kinds.pop().batched(list(parts.values()))
        return None if sums is None else cls(tuple(parts), sums)


class BatchedSums:
    """The sums of one round. `arrays`: what all of these silos were sent."""

    __slots__ = ("_arrays", "_found", "_ids", "_stack")

    def __init__(self, stack: Stack, arrays: Mapping[str, np.ndarray]) -> None:
        self._stack = stack
        self._arrays = list(arrays.values())  # held, so that no other array gets the identity of one of them
        self._ids = {id(array) for array in self._arrays}
        self._found: dict[str, Vector] | None = None

    def take(self, silo: str, asked: Sequence[Vector]) -> Vector | None:
        """The silo's sum about `asked`, which is then the caller's; None if it has to be computed alone.

        Only about the very arrays that arrived: another one with the same numbers may have others in the next moment.
        """
        for array in asked:
            if id(array) not in self._ids:
                return None
        if self._found is None:
            sums = self._stack.sums(*asked)
            self._found = {} if sums is None else dict(zip(self._stack.silos, sums, strict=True))
        return self._found.pop(silo, None)
