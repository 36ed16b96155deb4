"""SIMULATION: a group of simulated silos for which a site calls the method once a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedcore.ledger.memory import MemoryLedger
from fedcore.mechanisms.gaussian import SeededGaussian
from fedcore.models.linear import cached
from fedcore.planning.phase import Phase
from fedcore.silo.answers import Answer, Shard, Sums
from fedcore.silo.approved_run import ApprovedRun

MOST_BLOCKS = 8
"""Blocks of a silo's rows (`fedcore.summation`) at most: all block sums are in memory before they are added."""


@dataclass(frozen=True)
class Stack:
    """Silos that are summed in one pass in a phase, and the function that does it."""

    silos: tuple[str, ...]
    sums: Sums

    @classmethod
    def of(cls, parts: Mapping[str, tuple[Answer, Shard]]) -> Stack | None:
        """The stack of these silos; None for a single silo, for samples, and for kinds of answers without a pass.

        Silos with many blocks of rows are large enough to be computed alone.
        """
        parts = {silo: part for silo, part in parts.items() if len(part[1].blocks) <= MOST_BLOCKS}
        kinds = {type(answer) for answer, _ in parts.values()}
        if len(parts) < 2 or len(kinds) > 1 or any(shard.event.sampling != "full" for _, shard in parts.values()):
            return None
        sums = kinds.pop().batched(list(parts.values()))
        return None if sums is None else cls(tuple(parts), sums)


class Member(NamedTuple):
    """A simulated silo in a phase: its approved run, its shard, and its ledger in memory."""

    name: str
    run: ApprovedRun
    shard: Shard
    ledger: MemoryLedger


class Group:
    """Simulated silos in a phase. `count` and `noise` (silos, 1): divisors and standard deviations of their sums.

    `stack`: those that are summed in one pass; None: each is summed alone.
    """

    def __init__(self, members: Sequence[Member], stack: Stack | None = None) -> None:
        self.members = tuple(members)
        self.names = tuple(member.name for member in members)
        self.mechanism = SeededGaussian()
        self.keys = [member.run.key for member in members]
        self.count = np.array([[member.shard.count] for member in members])
        self.noise = np.array([[member.shard.noise] for member in members])
        self.stack = stack

    @classmethod
    def split(cls, members: Sequence[Member], phase: Phase) -> list[Group]:
        """All silos in one group if the method computes row by row; else one group for each.

        Silos that answer several times a round are in groups whose records stay in a processor's cache.
        """
        if not members[0].run.method.row_by_row:
            return [cls([member]) for member in members]
        if phase.schedule.answers == 1:
            kind = phase.question.kind
            return [cls(members, Stack.of({each.name: (each.run.answers[kind], each.shard) for each in members}))]
        return [cls(members[group]) for group in cached([member.shard.X.nbytes for member in members])]
