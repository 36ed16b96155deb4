"""The relay: takes envelopes of a federation's parties, and hands them to their receivers until these have them.

It needs no secret and no trust: it can neither open an envelope nor make one. It can lose or delay envelopes, and it
sees who writes to whom. It serves the parties of the coordinator's signed list. A party opens a session by a signature
over a fresh challenge. The relay deletes an envelope when its receiver acknowledges it by a signature. A later one of
the same sender about the same run replaces it.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from fedcore.errors import InputError, Refused
from fedcore.identity.envelope import Envelope, Heading
from fedcore.identity.keys import PublicIdentity
from fedcore.identity.sequences import MOST_AHEAD
from fedcore.relay.acknowledgements import acknowledged, signed_text
from fedcore.relay.mailboxes import Mailboxes
from fedcore.relay.members import COORDINATOR, Members
from fedcore.relay.sessions import FORM, UNKNOWN, Sessions

T = TypeVar("T")

OTHER, OLD, LONG, FULL, FAILED = "other", "old", "long", "full", "failed"
"""other: an envelope of another sender, receiver or federation; old: a replayed envelope; long: longer than any that it
takes; full: no room for this sender now; failed: the disk. Beside `FORM` and `UNKNOWN` of sessions."""

EXPIRY = 60.0
"""Seconds between two looks for envelopes that are too old."""


@dataclass(frozen=True)
class Quotas:
    """Bounds on the envelopes of one sender that wait: number, bytes together, bytes of one, and days of one."""

    envelopes: int = 10_000
    size: int = 2**31
    one: int = 2**26
    days: float = 30.0


@dataclass(frozen=True)
class Seen:
    """A party as the coordinator sees it: seconds since its last request (None: none yet), envelopes that wait."""

    ago: float | None
    waiting: int


class Relay:
    """Takes and gives bytes, from any thread; every method may raise `Refused`.

    `arrived`: called with the receiver's name, without a lock, after an envelope has come. `clock`: seconds since 1970.
    """

    def __init__(
        self,
        mailboxes: Mailboxes,
        members: Members,
        quotas: Quotas | None = None,
        arrived: Callable[[str], None] = lambda receiver: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._mailboxes, self._members = mailboxes, members
        self.quotas = quotas or Quotas()
        self._arrived, self._clock = arrived, clock
        self._lock = threading.Lock()
        self._sessions = Sessions(clock)
        self._expired = float("-inf")
        self._on_disk(lambda: mailboxes.remove_others(members.keys))

    def serve(self, members: Members, store: Callable[[], None] = lambda: None) -> bool:
        """Takes a newer list, or the newest once more; False for another. `store`: writes it to the disk, first.

        Sessions and envelopes of parties that are not on it, or have other keys, end.
        """
        with self._lock:
            old = self._members
            same = (members.federation, members.number) == (old.federation, old.number) and members == old
            if members.federation != old.federation or not (members.number > old.number or same):
                return False
            try:
                store()
            except InputError as error:
                raise Refused(FAILED, str(error)) from None
            self._members = members
            self._sessions.end({name for name, keys in old.keys.items() if members.keys.get(name) != keys})
            self._on_disk(lambda: self._mailboxes.remove_others(members.keys))
            return True

    def challenge(self) -> bytes:
        """A new challenge, which opens one session."""
        return self._sessions.challenge()

    def session(self, data: bytes) -> str:
        """The token of a session for the party that signed a challenge (`sessions.claim`)."""
        return self._sessions.open(data, self._members.federation, self._keys)

    def name(self, token: str) -> str:
        """The party whose session this is."""
        return self._sessions.name(token)

    def check_coordinator(self, token: str) -> None:
        """Raises Refused unless the session is the coordinator's."""
        if self.name(token) != COORDINATOR:
            raise Refused(OTHER, "only the coordinator changes the list, and sees when the others came")

    def deposit(self, token: str, data: bytes) -> None:
        """Stores an envelope of the session's party. The same one again is stored once."""
        self.deposit_all(token, [data])

    def deposit_all(self, token: str, envelopes: Sequence[bytes]) -> None:
        """Stores envelopes of the session's party, all or none of them, as `deposit` does."""
        name = self.name(token)
        checked = [(self._checked(name, data), data) for data in envelopes]
        with self._lock:
            newest: dict[Heading, tuple[int, bytes]] = {}
            new = [(envelope, data) for envelope, data in checked if self._is_new(envelope, newest)]
            if not new:
                return
            self._make_room(name, len(new), sum(len(data) for _, data in new))
            now = self._clock()
            self._on_disk(lambda: self._mailboxes.put(new, now))
        for envelope, _ in new:
            self._arrived(envelope.heading.receiver)

    def collect(self, token: str, most: int, run: str | None = None) -> list[bytes]:
        """The oldest envelopes that wait for the session's party, of together at most `most` bytes, or the first.

        `run`: about which they are, since a coordinator's drivers share its name; None: any.
        """
        name = self.name(token)
        with self._lock:
            return self._on_disk(lambda: self._mailboxes.of(name, most, run))

    def acknowledge(self, token: str, data: bytes) -> int:
        """Deletes envelopes that the session's party has (`acknowledgement`); returns how many were there."""
        name = self.name(token)
        taken, signature = acknowledged(data)
        try:
            self._keys(name).check_signature(signature, signed_text(self._members.federation, name, taken))
        except ValueError as error:
            raise Refused(OTHER, str(error)) from None
        with self._lock:
            return self._on_disk(lambda: self._mailboxes.remove(name, taken))

    def seen(self, token: str) -> dict[str, Seen]:
        """Each party as the coordinator sees it; for its own sessions alone."""
        self.check_coordinator(token)
        ago, names = self._sessions.seen(), list(self._members.keys)
        with self._lock:
            waiting = self._on_disk(lambda: {name: self._mailboxes.waiting(name) for name in names})
        return {name: Seen(ago.get(name), count) for name, count in waiting.items()}

    def waiting(self) -> int:
        """Number of envelopes that wait."""
        with self._lock:
            return self._on_disk(self._mailboxes.count)

    def _checked(self, name: str, data: bytes) -> Envelope:
        """The envelope of these bytes. Raises Refused unless it is of this party, to one that it may write to."""
        if len(data) > self.quotas.one:
            raise Refused(LONG, f"an envelope of {len(data)} bytes is longer than the {self.quotas.one} that it takes")
        try:
            envelope = Envelope.from_bytes(data)
        except ValueError as error:
            raise Refused(FORM, str(error)) from None
        self._check(envelope, name)
        return envelope

    def _is_new(self, envelope: Envelope, newest: dict[Heading, tuple[int, bytes]]) -> bool:
        """False for the newest envelope once more. `newest`: of this call's. Raises Refused for an older one."""
        heading, mine = envelope.heading, (envelope.heading.sequence, envelope.digest)
        about = replace(heading, sequence=1)
        last = newest.get(about) or self._on_disk(lambda: self._mailboxes.newest(envelope))
        if last == mine:
            return False
        if last is not None and last[0] >= heading.sequence:
            raise Refused(OLD, f"a later envelope of {heading.sender} to {heading.receiver} about this run came before")
        newest[about] = mine
        return True

    def _check(self, envelope: Envelope, name: str) -> None:
        """Raises Refused unless the envelope is of this party, to one that it may write to, and of now."""
        heading = envelope.heading
        if heading.federation != self._members.federation:
            raise Refused(OTHER, f"it serves another federation than {heading.federation[:12]}")
        if heading.sender != name:
            raise Refused(OTHER, f"the session is that of {name}, and the envelope that of {heading.sender}")
        if COORDINATOR not in (heading.sender, heading.receiver) or heading.sender == heading.receiver:
            raise Refused(OTHER, "parties write to the coordinator, and the coordinator to them")
        if heading.sequence > (self._clock() + MOST_AHEAD.total_seconds()) * 1e6:
            raise Refused(OTHER, "the envelope is from more than a day ahead of this clock; set the clocks right")
        self._keys(heading.receiver)
        try:
            envelope.check_sender(self._keys(name))
        except ValueError as error:
            raise Refused(OTHER, str(error)) from None

    def _make_room(self, name: str, count: int, size: int) -> None:
        """Drops what is too old. Raises Refused if the sender would have more waiting than its quota."""
        quotas, now = self.quotas, self._clock()
        if now >= self._expired + EXPIRY:
            self._expired = now
            self._on_disk(lambda: self._mailboxes.remove_before(now - quotas.days * 86400))
        held = self._on_disk(lambda: self._mailboxes.held(name))
        if held.envelopes + count > quotas.envelopes or held.size + size > quotas.size:
            raise Refused(
                FULL,
                f"{held.envelopes} envelopes of {name} wait, of {held.size} bytes together; it holds "
                f"{quotas.envelopes} of a sender, and {quotas.size} bytes; try again when their receivers came",
            )

    def _keys(self, name: str) -> PublicIdentity:
        keys = self._members.keys.get(name)
        if keys is None:
            raise Refused(UNKNOWN, f"{name} is not on the coordinator's list {self._members.number}")
        return keys

    def _on_disk(self, act: Callable[[], T]) -> T:
        try:
            return act()
        except sqlite3.Error:
            pass
        raise Refused(FAILED, "its envelopes cannot be read or written; try again")
