"""SIMULATION: one round of a site's simulated silos in columns, with one call of the method for all of them.

Noise, charges and checks are those of `PrivateSilo.answer`, on a matrix (silos, length) in place of a vector, and every
bit is the same. A guarded silo, one with a policy or a durable ledger, and a repeated question are answered silo by
silo.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedcore.arrays import Matrix, Vector
from fedcore.errors import SiloError
from fedcore.ledger.memory import MemoryLedger, commit_round
from fedcore.ledger.rows import RoundRows
from fedcore.mechanisms.gaussian import SeededGaussian, numbered
from fedcore.mechanisms.grid import GridGaussian
from fedcore.messages import Query, Releases
from fedcore.planning.phase import Phase
from fedcore.silo.answers import ANSWERS, Answer, Shard, Sums
from fedcore.silo.approved_run import ApprovedRun
from fedcore.silo.question import RoundQuestion
from fedcore.silo.refusal import with_public_errors
from fedcore.silo.round_view import RoundView

MOST_AT_ONCE = 1 << 16
"""Numbers of one pass of noise over several silos, at most: half a megabyte."""


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


class Members:
    """The silos of a site that answer a phase's rounds in columns."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = tuple(members)
        self.names = tuple(member.name for member in members)
        self.ledgers = [member.ledger for member in members]
        self.shards = [member.shard for member in members]
        self.keys = [member.run.key for member in members]
        self.events = [shard.event for shard in self.shards]
        self.count = np.array([[shard.count] for shard in self.shards])
        self.noise = np.array([[shard.noise] for shard in self.shards])
        self.mechanism = SeededGaussian()
        self.stack: Stack | None = None

    @classmethod
    def of(cls, found: Iterable[Member | None], phase: Phase) -> Members | None:
        """The columns of several silos; None unless all are simulated and the method computes row by row."""
        members: list[Member] = []
        for member in found:
            if member is None or not member.run.method.row_by_row or phase.schedule.at_most_once:
                return None
            members.append(member)
        if len(members) < 2:
            return None
        made = cls(members)
        if np.any(made.noise > 0) and not np.all(made.noise > 0):
            return None
        kind = phase.question.kind
        made.stack = Stack.of({m.name: (m.run.answers[kind], m.shard) for m in members})
        return made

    def answers(self, query: Query, phase: Phase, whole: bool) -> Releases:
        """The silos' releases, committed in their ledgers. `whole`: as in `commit_round`. Raises SiloError."""
        first = self.members[0]
        digests = list(query.digests(self.names).values())
        view = RoundColumns(self, query, digests, phase)
        sent = {**query.arrays, **{key: self._own(query, key) for key in next(iter(query.own.values()), {})}}
        message = with_public_errors(first.name, first.run.method.silo_step, sent, view)
        view.over = True
        shape = len(self.names), phase.question.sent(first.run.plan.problem.objective.dim)
        if view.answered != phase.schedule.answers or not _is_matrix(message, shape):
            sentence = f"the method's messages are no {shape} float64 after {phase.schedule.answers} answers"
            raise SiloError(first.name, "plan", sentence)
        message.flags.writeable = False
        payloads = [hashlib.sha256(row.data).digest() for row in message]
        rows = RoundRows(query.phase, query.round, digests, self.events, payloads, message)
        commit_round(self.ledgers, query.run, rows, first.run.lease, whole)
        return Releases(query.phase, query.round, self.names, digests, message)

    def _own(self, query: Query, key: str) -> Matrix:
        return np.array([query.own[name][key] for name in self.names])


class Columns:
    """One run's rounds in columns at a site: `Members` by kind of round, within one phase."""

    def __init__(self) -> None:
        self._key: tuple[Any, ...] = ()
        self._members: dict[int, Members | None] = {}
        self._newest: tuple[int, int] | None = None

    def answered_alone(self) -> None:
        """Takes note that silos of the run get rows by themselves."""
        self._newest = None

    def members(self, key: tuple[Any, ...], kind: int, made: Callable[[], Members | None]) -> Members | None:
        """The members for this kind of round. `key`: with another one, silos and shards are others too."""
        if key != self._key:
            self._key, self._members = key, {}
        if kind not in self._members:
            self._members[kind] = made()
        return self._members[kind]

    def are_next(self, query: Query, members: Members) -> bool:
        """True if none of the members has answered this question's round, or a later one."""
        at = query.phase, query.round
        if self._newest is not None:  # the newest rows are of these columns
            return at > self._newest
        return all(ledger.is_next(query.run, *at) for ledger in members.ledgers)

    def answers(self, query: Query, phase: Phase, members: Members, whole: bool) -> Releases:
        """The releases of members that `are_next`, committed. `whole`: as in `commit_round`. Raises SiloError."""
        self._newest = None  # an interruption may leave some ledgers a round behind
        found = members.answers(query, phase, whole)
        self._newest = query.phase, query.round
        return found


def _is_matrix(message: object, shape: tuple[int, int]) -> bool:
    return (
        isinstance(message, np.ndarray)
        and message.dtype == np.float64
        and message.shape == shape
        and message.flags.c_contiguous
    )


class RoundColumns:
    """Implements `fedcore.algorithms.method.Silo` for several simulated silos: answers are matrices (silos, length)."""

    def __init__(self, members: Members, query: Query, digests: Sequence[bytes], phase: Phase) -> None:
        self._members, self._query, self._digests, self._phase = members, query, digests, phase
        first = members.members[0].run
        self._problem = first.plan.problem
        self._address, _ = first.keys.address(first.named, query.phase, query.round, digests[0])
        self._views: list[ExactView] = []
        self.answered = 0
        self.over = False

    @property
    def ridge(self) -> float:
        return self._problem.objective.ridge

    @property
    def address(self) -> tuple[str, int, int]:
        raise SiloError(self._members.names[0], "plan", "a method that computes row by row needs no silo's name")

    @property
    def phase(self) -> Phase:
        return self._phase

    def ask(self, kind: str, *arrays: Vector | Matrix) -> Matrix:
        """`RoundView.ask` of every silo (silos, length). An array (d,) is for all silos, (silos, d) has a row for each.

        Raises SiloError as `RoundView.ask`.
        """
        first = self._members.names[0]
        if self.over:
            raise SiloError(first, "plan", "the method asked after its round")
        if kind != self._phase.question.kind:
            raise SiloError(first, "plan", f"the method asked for {kind} where {self._phase.question.kind} is planned")
        self.answered += 1
        total, scale = self._summed(kind, arrays)
        self._add_noise(total, scale)
        total /= self._members.count
        return total

    def _summed(self, kind: str, arrays: Sequence[np.ndarray]) -> tuple[Matrix, float | Matrix]:
        """Exact sums (silos, length), and their scale, where it differs as (silos, 1)."""
        names, own = self._members.names, any(array.ndim > 1 for array in arrays)
        scale = 0.0 if own else ANSWERS[kind].scale(self._problem, *arrays)
        stack = self._members.stack if scale > 0.0 else None
        stacked = None if stack is None else stack.sums(*arrays)
        if stack is not None and stacked is not None and len(stacked) == len(names):
            return stacked, scale
        found = {} if stack is None or stacked is None else dict(zip(stack.silos, stacked, strict=True))
        self._views = self._views or [self._view(at) for at in range(len(names))]
        scales = np.full((len(names), 1), scale)
        sums = []
        for at, view in enumerate(self._views):
            if (total := found.get(names[at])) is None:
                rows = [array if array.ndim == 1 else array[at] for array in arrays]
                view.answered = self.answered - 1
                total = with_public_errors(names[at], view.ask, kind, *rows)
                scales[at] = view.scale
            sums.append(total)
        return np.array(sums), scales

    def _view(self, at: int) -> ExactView:
        query, member = self._query, self._members.members[at]
        name, run = member.name, member.run
        question = RoundQuestion(query.run, query.phase, query.round, query.arrays_for(name), self._digests[at])
        return ExactView(name, run, question, self._phase, member.shard, self._members.mechanism, GridGaussian())

    def _add_noise(self, total: Matrix, scale: float | Matrix) -> None:
        members, length = self._members, total.shape[1]
        if not members.noise[0, 0] > 0:
            return
        context = numbered(self._address, self.answered)
        deviation = members.noise * scale
        at_once = max(1, MOST_AT_ONCE // length)
        for start in range(0, len(total), at_once):
            rows = slice(start, start + at_once)
            noise = members.mechanism.rows([(key, context) for key in members.keys[rows]], length)
            noise *= deviation[rows]
            total[rows] += noise


class ExactView(RoundView):
    """NOT PRIVATE: a simulated silo's view whose answers are exact sums; `RoundColumns` adds the noise.

    `scale`: of the newest answer.
    """

    scale = 0.0

    def ask(self, kind: str, *arrays: Vector) -> Vector:
        self.scale = 0.0
        return super().ask(kind, *arrays)

    def _released(self, total: Vector, context: bytes, scale: float) -> Vector:
        self.scale = scale
        return total
