"""The shuffler: waits for a round's sealed messages, permutes them, commits the batch once, and hands it on.

The shuffler cannot read messages, and a batch reveals neither senders nor times. Messages wait in memory only, so that
the disk never connects a silo with a message. If the process dies they are lost. The server then finds the round
unknown and opens it again, and silos send their committed releases again.

A batch is committed once, and later messages are refused for good. A second batch with other messages of the round
would reveal, compared with the first, whose are missing.
"""

from __future__ import annotations

import random
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from fedcore.errors import Refused
from fedcore.shuffling.batches import Batches
from fedcore.shuffling.forms import Address, Envelope, Opening, Request, SealedBatch

T = TypeVar("T")

MOST_RUNS = 64
"""Bound on the runs with an open round."""
MOST_WAITING = 2**30
"""Bound on the bytes of messages of all open rounds."""


ABANDONED = 600.0
"""Seconds after its deadline for which an uncollected round holds its messages."""


FORM, LATE, UNKNOWN, FEW, OTHER, FULL, FAILED = "form", "late", "unknown", "few", "other", "full", "failed"
"""form: bytes of another form; late: the batch is committed; unknown: the round is not open in this process; few: too
few messages; other: the message does not fit the opening; full: no room; failed: the disk does not take the batch."""
SILENT = "silent"
"""Code in a caller's error about a shuffler that does not answer."""


@dataclass
class _Round:
    opening: Opening
    until: float
    least: int
    waiting: dict[str, bytes] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.waiting) == len(self.opening.participants)


class Shuffler:
    """Takes and gives bytes, from any thread; every method may raise `Refused`.

    `least`: least number of messages in a batch, whatever the opening. `clock`: in seconds, for deadlines.
    """

    def __init__(self, batches: Batches, least: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._batches = batches
        self._least = least
        self._clock = clock
        self._rounds: dict[str, _Round] = {}
        self._changed = threading.Condition()
        self._random = secrets.SystemRandom()

    def open(self, opening: bytes) -> bool:
        """Opens a round, or restarts its deadline; False if its batch is committed.

        Ends the run's earlier rounds: a server that opens the next one has their batches.
        """
        opened = _rebuilt(Opening.from_bytes, opening)
        at, count = opened.at, len(opened.participants)
        least = max(self._least, opened.minimum)
        if count < least:
            raise Refused(FEW, f"{at}: {count} silos take part, and no batch of fewer than {least} is handed on")
        with self._changed:
            self._check_owner(at, opened.owner)
            committed = self._on_disk(lambda: self._batches.find(at))
            if committed is not None:
                if committed.key != opened.key:
                    raise Refused(OTHER, f"{at}: its batch was committed, sealed to another key")
                return False
            known = self._rounds.get(at.run)
            if known is not None and known.opening.at == at:
                if known.opening != opened:
                    raise Refused(OTHER, f"{at}: it was opened with other participants, minimum, question or key")
                known.until = self._clock() + opened.deadline
                return True
            self._drop_abandoned()
            others = [each.opening for run, each in self._rounds.items() if run != at.run]
            room = sum(len(each.participants) * each.length for each in others) + count * opened.length
            if len(others) >= MOST_RUNS or room > MOST_WAITING:
                raise Refused(FULL, f"{at}: it has no room for so many rounds and messages at a time; try again later")
            # Only now: a refused opening must neither claim a run nor fill the disk with names.
            self._on_disk(lambda: self._batches.claim(at.run, opened.owner))
            self._on_disk(lambda: self._batches.forget(at.run, at))
            self._rounds[at.run] = _Round(opened, self._clock() + opened.deadline, least)
            return True

    def take(self, envelope: bytes) -> None:
        """Holds a silo's message until the batch is complete; of several from one silo the first counts."""
        sent = _rebuilt(Envelope.from_bytes, envelope)
        at = sent.at
        with self._changed:
            if self._on_disk(lambda: self._batches.find(at)) is not None:
                raise Refused(LATE, f"{at}: its batch is committed, and takes no further message")
            round = self._rounds.get(at.run)
            if round is None or round.opening.at != at:
                raise Refused(UNKNOWN, f"{at} is not open here")
            opening = round.opening
            if sent.silo not in opening.participants:
                raise Refused(OTHER, f"{at}: {sent.silo} takes no part in it")
            if sent.key != opening.key or len(sent.sealed) != opening.length:
                raise Refused(OTHER, f"{at}: its messages have another length, or are sealed to another key")
            if sent.question != opening.question:
                raise Refused(OTHER, f"{at}: {sent.silo} was asked something else than what the round was opened for")
            if sent.minimum > len(opening.participants):
                raise Refused(FEW, f"{at}: {sent.silo} agreed to batches of at least {sent.minimum} messages")
            round.least = max(round.least, sent.minimum)
            round.waiting.setdefault(sent.silo, sent.sealed)
            if round.complete:
                self._commit(round)

    def batch(self, request: bytes, seconds: float = 0.0) -> bytes | None:
        """The round's batch, the same at every request; None if it is not complete after `seconds`.

        After the deadline the messages that came make the batch. If they are too few, they are dropped and the round is
        closed.
        """
        wanted = _rebuilt(Request.from_bytes, request)
        at, give_up = wanted.at, self._clock() + seconds
        with self._changed:
            self._check_owner(at, wanted.owner)
            if wanted.ends:
                self._rounds.pop(at.run, None)
                self._on_disk(lambda: self._batches.forget(at.run, None))
                return None
            while True:
                committed = self._on_disk(lambda: self._batches.find(at))
                if committed is not None:
                    if committed.batch is None:
                        raise Refused(LATE, f"{at}: its batch was handed on, and the run has gone on since")
                    return committed.batch
                round = self._rounds.get(at.run)
                if round is None or round.opening.at != at:
                    raise Refused(UNKNOWN, f"{at} is not open here")
                now = self._clock()
                if round.complete or (now >= round.until and len(round.waiting) >= round.least):
                    self._commit(round)
                    continue
                if now >= round.until:
                    del self._rounds[at.run]
                    raise Refused(
                        FEW,
                        f"{at}: {len(round.waiting)} of {len(round.opening.participants)} messages came within "
                        f"{round.opening.deadline:g} s, and no batch of fewer than {round.least} is handed on",
                    )
                if now >= give_up:
                    return None
                self._changed.wait(min(give_up, round.until) - now)

    def _drop_abandoned(self) -> None:
        """Drops rounds whose server has not collected the batch for `ABANDONED` seconds after the deadline."""
        until = self._clock() - ABANDONED
        self._rounds = {run: each for run, each in self._rounds.items() if each.until > until}

    def _commit(self, round: _Round) -> None:
        """Permutes the waiting messages and writes the batch, under the lock; if that fails, they go on waiting."""
        messages = permuted(list(round.waiting.values()), self._random)
        batch = SealedBatch(round.opening.at, tuple(messages)).to_bytes()
        self._on_disk(lambda: self._batches.commit(round.opening.at, round.opening.key, batch))
        self._rounds.pop(round.opening.at.run, None)
        self._changed.notify_all()

    def _check_owner(self, at: Address, owner: str) -> None:
        if not self._on_disk(lambda: self._batches.owns(at.run, owner)):
            raise Refused(OTHER, f"{at}: another server has opened this run here")

    def _on_disk(self, act: Callable[[], T]) -> T:
        try:
            return act()
        except sqlite3.Error:
            pass
        raise Refused(FAILED, "its batches cannot be read or written; nothing was handed on")


def permuted(messages: list[bytes], source: random.Random) -> list[bytes]:
    """The messages in an order drawn uniformly from all orders (Fisher and Yates)."""
    drawn = list(messages)
    source.shuffle(drawn)
    return drawn


def _rebuilt(rebuild: Callable[[bytes], T], data: bytes) -> T:
    try:
        return rebuild(data)
    except ValueError as error:
        fault = str(error)
    raise Refused(FORM, fault)
