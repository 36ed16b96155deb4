"""Sums of several silos of one site for the same question, computed in one pass.

One call per silo would spend more time on calls than on records. The pass gives each silo the bits of a call of its
own. Each silo's records have their own products, and predictors are treated number by number. A method may ask about
other arrays than those that arrived, as local steps do; then each silo is computed alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedcore.arrays import Vector
from fedcore.silo.answers import Answer, Shard, Sums

Part = tuple[Answer, Shard]
MOST_BLOCKS = 8
"""Blocks of a silo's rows (`fedcore.summation`) at most: all block sums are in memory before they are added."""


@dataclass(frozen=True)
class Stack:
    """Silos that are summed in one pass in a phase, and the function that does it."""

    silos: tuple[str, ...]
    sums: Sums

    @classmethod
    def of(cls, parts: Mapping[str, Part]) -> Stack | None:
        """The stack of these silos; None for a single silo, for samples, and for kinds of answers without a pass.

        Silos with many blocks of rows are large enough to be computed alone.
        """
        parts = {silo: part for silo, part in parts.items() if len(part[1].blocks) <= MOST_BLOCKS}
        kinds = {type(answer) for answer, _ in parts.values()}
        if len(parts) < 2 or len(kinds) > 1 or any(shard.event.sampling != "full" for _, shard in parts.values()):
            return None
        sums = kinds.pop().batched(list(parts.values()))
        return None if sums is None else cls(tuple(parts), sums)


class BatchedSums:
    """The sums of one round. `arrays`: those that all of these silos received."""

    __slots__ = ("_arrays", "_found", "_ids", "_stack")

    def __init__(self, stack: Stack, arrays: Mapping[str, np.ndarray]) -> None:
        self._stack = stack
        self._arrays = list(arrays.values())  # held, so that no other array gets the identity of one of them
        self._ids = {id(array) for array in self._arrays}
        self._found: dict[str, Vector] | None = None

    def take(self, silo: str, question: Sequence[Vector]) -> Vector | None:
        """The silo's sum for the arrays of a `question`, handed over to the caller; None: it has to be computed alone.

        Only the very arrays that arrived count: the values of any other array may change later.
        """
        for array in question:
            if id(array) not in self._ids:
                return None
        if self._found is None:
            sums = self._stack.sums(*question)
            self._found = {} if sums is None else dict(zip(self._stack.silos, sums, strict=True))
        return self._found.pop(silo, None)
