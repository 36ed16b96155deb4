"""SIMULATION: the silos of a site that answer a round in columns, with one call of the method for many of them.

Noise, charges and checks are those of `PrivateSilo.answer`, on a matrix (silos, length) in place of a vector, and every
bit is the same. A guarded silo, one with a policy or a durable ledger, and a repeated question are answered silo by
silo.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedcore.arrays import Matrix, is_float64
from fedcore.errors import SiloError
from fedcore.ledger.memory import commit_round
from fedcore.ledger.rows import RoundRows
from fedcore.messages import Query, Releases
from fedcore.planning.phase import Phase
from fedcore.silo.columns.group import Group, Member
from fedcore.silo.columns.matrix_view import MatrixView
from fedcore.silo.refusal import with_public_errors
from fedcore.silo.round_view import RoundView


class Members:
    """The silos of a site that answer a phase's rounds in columns."""

    def __init__(self, members: Sequence[Member], groups: Sequence[Group]) -> None:
        self._lease = members[0].run.lease
        self._names = tuple(member.name for member in members)
        self._events = [member.shard.event for member in members]
        self._groups = tuple(groups)
        self.ledgers = [member.ledger for member in members]

    @classmethod
    def of(cls, found: Iterable[Member | None], phase: Phase) -> Members | None:
        """The columns of several silos; None unless all of them are simulated."""
        if phase.schedule.at_most_once:
            return None
        members: list[Member] = []
        for member in found:
            if member is None:
                return None
            members.append(member)
        noised = sum(member.shard.noise > 0 for member in members)
        if len(members) < 2 or noised not in (0, len(members)):
            return None
        return cls(members, Group.split(members, phase))

    def answers(self, query: Query, phase: Phase, whole: bool) -> Releases:
        """The silos' releases, committed in their ledgers. `whole`: as in `commit_round`. Raises SiloError."""
        digests = query.digests(self._names)
        messages = [_message(group, query, digests, phase) for group in self._groups]
        message = messages[0] if len(messages) == 1 else np.concatenate(messages)
        message.flags.writeable = False
        payloads, questions = [hashlib.sha256(row.data).digest() for row in message], list(digests.values())
        rows = RoundRows(query.phase, query.round, questions, self._events, payloads, message)
        commit_round(self.ledgers, query.run, rows, self._lease, whole)
        return Releases(query.phase, query.round, self._names, questions, message)


def _message(group: Group, query: Query, digests: Mapping[str, bytes], phase: Phase) -> Matrix:
    """The messages of a group of silos (silos, length), not committed yet. Raises SiloError."""
    first, run = group.names[0], group.members[0].run
    step, dim = run.method.silo_step, phase.question.sent(run.plan.problem.objective.dim)
    columns = MatrixView(group, query, digests, phase)
    view: MatrixView | RoundView
    if len(group.names) == 1:
        view = columns.of(0, RoundView)
        message = with_public_errors(first, step, query.arrays_for(first), view)
        shape: tuple[int, ...] = (dim,)
    else:
        view, keys = columns, query.own.get(first, {})
        own = {key: np.array([query.own[name][key] for name in group.names]) for key in keys}
        message = with_public_errors(first, step, {**query.arrays, **own}, view)
        shape = (len(group.names), dim)
    view.end()
    if not is_float64(message, shape):
        raise SiloError(first, "plan", f"the method's messages are not {len(group.names)} arrays of {dim} float64")
    return np.ascontiguousarray(message).reshape(len(group.names), dim)


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
