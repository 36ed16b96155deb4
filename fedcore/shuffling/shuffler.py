"""The shuffler: waits for a round's sealed messages, permutes them, commits the batch once, and hands that one on.

It cannot read what it carries, and what it hands on tells neither who sent which message nor when. A round's messages
wait in memory and nowhere else: what is on disk never connects a silo with a message. If the process dies they are
lost, the server finds that the round is not known any more, opens it again, and silos send again what they have
committed. A batch is committed once: with a second one of another part of the same messages, whoever compared the two
would know whose are missing. So messages that come later are refused, for good.
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

from fedcore.shuffling.batches import Batches
from fedcore.shuffling.forms import Address, Envelope, Opening, Request, SealedBatch

T = TypeVar("T")

MOST_RUNS = 64
"""Whose rounds are open at a time."""
MOST_WAITING = 2**30
"""Bytes of messages that may come to wait in all open rounds."""


ABANDONED = 600.0
"""Seconds after its deadline for which a round that nobody asks for keeps its messages."""


class Refused(Exception):
    """What a shuffler does not take or give, by one public sentence. `code`: from a fixed list, below."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(code, sentence)
        self.code, self.sentence = code, sentence


FORM, LATE, UNKNOWN, FEW, OTHER, FULL, FAILED = "form", "late", "unknown", "few", "other", "full", "failed"
"""Bytes of another form; a batch that is committed; a round that nobody has opened here, or this process has forgotten;
too few messages; not what was opened; no room; the disk does not take the batch."""
SILENT = "silent"
"""What its callers say of one that does not answer."""


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
    """Takes and gives bytes, from any thread. `least`: messages below which it hands on no batch, whatever is asked.

    `clock`: seconds, by which deadlines are kept. Raises `Refused`, from every method.
    """

    def __init__(self, batches: Batches, least: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._batches = batches
        self._least = least
        self._clock = clock
        self._rounds: dict[str, _Round] = {}
        self._changed = threading.Condition()
        self._random = secrets.SystemRandom()

    def open(self, opening: bytes) -> bool:
        """Begins to wait for a round's messages, or begins its deadline anew; False if its batch is committed.

        The run's rounds before it are over: whoever opens the next one has what they gave.
        """
        asked = _rebuilt(Opening.from_bytes, opening)
        at, count = asked.at, len(asked.participants)
        least = max(self._least, asked.minimum)
        if count < least:
            raise Refused(FEW, f"{at}: {count} silos take part, and no batch of fewer than {least} is handed on")
        with self._changed:
            self._check_owner(at, asked.owner)
            committed = self._on_disk(lambda: self._batches.find(at))
            if committed is not None:
                if committed.key != asked.key:
                    raise Refused(OTHER, f"{at}: its batch was committed, sealed to another key")
                return False
            known = self._rounds.get(at.run)
            if known is not None and known.opening.at == at:
                if known.opening != asked:
                    raise Refused(OTHER, f"{at}: it was opened with other participants, minimum, question or key")
                known.until = self._clock() + asked.deadline
                return True
            self._drop_abandoned()
            others = [each.opening for run, each in self._rounds.items() if run != at.run]
            room = sum(len(each.participants) * each.length for each in others) + count * asked.length
            if len(others) >= MOST_RUNS or room > MOST_WAITING:
                raise Refused(FULL, f"{at}: it has no room for so many rounds and messages at a time; try again later")
            # Only now: who asks in vain would else keep others' runs out, and fill the disk with names.
            self._on_disk(lambda: self._batches.claim(at.run, asked.owner))
            self._on_disk(lambda: self._batches.forget(at.run, at))
            self._rounds[at.run] = _Round(asked, self._clock() + asked.deadline, least)
            return True

    def take(self, envelope: bytes) -> None:
        """Keeps a silo's message until the batch is complete. Of several from one silo the first one stays."""
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
        """The round's batch, the same whenever it is asked for; None if it is still waited for after `seconds`.

        At the deadline that of the messages that came; if they are too few, they are dropped and the round is closed.
        """
        asked = _rebuilt(Request.from_bytes, request)
        at, give_up = asked.at, self._clock() + seconds
        with self._changed:
            self._check_owner(at, asked.owner)
            if asked.ends:
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
        """Lets go of rounds whose server has not come for the batch since their deadline: nobody
        else gets their room."""
        until = self._clock() - ABANDONED
        self._rounds = {run: each for run, each in self._rounds.items() if each.until > until}

    def _commit(self, round: _Round) -> None:
        """Permutes what waits, and writes it; with the lock. What cannot be written goes on waiting."""
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
    """The messages in an order that is drawn uniformly from all orders (Fisher and Yates), whatever theirs was."""
    drawn = list(messages)
    source.shuffle(drawn)
    return drawn


def _rebuilt(rebuild: Callable[[bytes], T], data: bytes) -> T:
    try:
        return rebuild(data)
    except ValueError as error:
        fault = str(error)
    raise Refused(FORM, fault)
