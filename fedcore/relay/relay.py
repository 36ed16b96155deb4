"""The relay: takes envelopes of a federation's parties, and hands them to their receivers until these have them.

It needs no secret and no trust: it can neither open an envelope nor make one. It can lose or delay envelopes, and it
sees who writes to whom. It serves the parties of the coordinator's signed list. A party opens
a session by a signature over a fresh challenge. It deletes only what its receiver has acknowledged by a signature.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter

from fedcore.errors import Refused
from fedcore.identity.envelope import PARTY, Envelope
from fedcore.identity.keys import Identity, PublicIdentity
from fedcore.relay.mailboxes import Mailboxes
from fedcore.relay.members import COORDINATOR, Members

T = TypeVar("T")

FORM, UNKNOWN, OTHER, OLD, FULL, FAILED = "form", "unknown", "other", "old", "full", "failed"
"""form: bytes of another form; unknown: no session, or no party of the list; other: an envelope of another sender or
federation; old: a replayed envelope; full: no room for this sender; failed: the disk."""

CHALLENGE_BYTES = 32
CHALLENGED, OPEN = 60.0, 900.0
"""Seconds for which a challenge and a session last."""
MOST_CHALLENGES, MOST_SESSIONS = 2**14, 8
"""Challenges at a time, and sessions of one party; above them the oldest end."""
MOST_ACKNOWLEDGED = 2**10
LARGEST_CLAIM = 2**10
LARGEST_ACKNOWLEDGEMENT = 2**17
_SESSION, _TAKEN = b"fedcore relay, session\0", b"fedcore relay, taken\0"


_STRICT = ConfigDict(strict=True)
_Name = Annotated[str, Field(pattern=PARTY)]
_Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Signature = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]
_CLAIM = TypeAdapter(tuple[_Name, _Hex, _Signature], config=_STRICT)
_ACKNOWLEDGEMENT = TypeAdapter(
    tuple[Annotated[list[_Hex], Field(max_length=MOST_ACKNOWLEDGED)], _Signature], config=_STRICT
)


@dataclass(frozen=True)
class Quotas:
    """Bounds on the envelopes of one sender that wait: number, bytes together, bytes of one, and days of one."""

    envelopes: int = 10_000
    size: int = 2**31
    one: int = 2**26
    days: float = 30.0


@dataclass
class _Session:
    name: str
    until: float


@dataclass(frozen=True)
class Seen:
    """A party as the coordinator sees it: seconds since its last request (None: none yet), envelopes that wait."""

    ago: float | None
    waiting: int


def claim(identity: Identity, federation: str, name: str, challenge: bytes) -> bytes:
    """A party's claim to a session, in answer to a challenge."""
    signature = identity.sign(_session_text(federation, name, challenge))
    return json.dumps([name, challenge.hex(), signature.hex()]).encode()


def acknowledgement(identity: Identity, federation: str, name: str, digests: list[bytes]) -> bytes:
    """A party's word that it has these envelopes, whose digests are 32 bytes each."""
    signature = identity.sign(_taken_text(federation, name, digests))
    return json.dumps([[each.hex() for each in digests], signature.hex()]).encode()


class Relay:
    """Takes and gives bytes, from any thread; every method may raise `Refused`.

    `arrived`: called with the receiver's name, without the lock, after an envelope has come. `clock`: in seconds.
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
        self._challenges: dict[bytes, float] = {}
        self._sessions: dict[str, _Session] = {}
        self._seen: dict[str, float] = {}

    def serve(self, members: Members) -> bool:
        """Takes a newer list; False if it is none. Sessions and envelopes of parties that are not on it end."""
        with self._lock:
            if members.federation != self._members.federation or members.number <= self._members.number:
                return False
            changed = {name for name, keys in self._members.keys.items() if members.keys.get(name) != keys}
            self._members = members
            self._sessions = {token: each for token, each in self._sessions.items() if each.name not in changed}
            self._on_disk(lambda: self._mailboxes.remove_others(members.keys))
            return True

    def challenge(self) -> bytes:
        """A new challenge, which opens one session."""
        with self._lock:
            now = self._clock()
            self._challenges = {each: until for each, until in self._challenges.items() if until > now}
            while len(self._challenges) >= MOST_CHALLENGES:
                self._challenges.pop(next(iter(self._challenges)))
            made = secrets.token_bytes(CHALLENGE_BYTES)
            self._challenges[made] = now + CHALLENGED
            return made

    def session(self, data: bytes) -> str:
        """The token of a session for the party that signed this challenge (`claim`)."""
        name, challenge, signature = _read("a claim", _CLAIM, data, LARGEST_CLAIM)
        nonce = bytes.fromhex(challenge)
        with self._lock:
            if self._challenges.pop(nonce, 0.0) <= self._clock():
                raise Refused(UNKNOWN, "this challenge was not made here, is used, or is too old")
            keys = self._keys(name)
            try:
                keys.check_signature(bytes.fromhex(signature), _session_text(self._members.federation, name, nonce))
            except ValueError as error:
                raise Refused(UNKNOWN, str(error)) from None
            now = self._clock()
            self._sessions = {token: each for token, each in self._sessions.items() if each.until > now}
            mine = [token for token, each in self._sessions.items() if each.name == name]
            for token in mine[: max(0, len(mine) - MOST_SESSIONS + 1)]:
                del self._sessions[token]
            token = secrets.token_hex(32)
            self._sessions[token] = _Session(name, now + OPEN)
            return token

    def deposit(self, token: str, data: bytes) -> None:
        """Stores an envelope of the session's party. The same one again is stored once."""
        if len(data) > self.quotas.one:
            raise Refused(FULL, f"an envelope of {len(data)} bytes is longer than the {self.quotas.one} that it takes")
        envelope = _rebuilt(Envelope.from_bytes, data)
        heading = envelope.heading
        with self._lock:
            name = self._name(token)
            if heading.federation != self._members.federation:
                raise Refused(OTHER, f"it serves another federation than {heading.federation[:12]}")
            if heading.sender != name:
                raise Refused(OTHER, f"the session is that of {name}, and the envelope that of {heading.sender}")
            self._keys(heading.receiver)
            try:
                envelope.check_sender(self._keys(name))
            except ValueError as error:
                raise Refused(OTHER, str(error)) from None
            newest = self._on_disk(lambda: self._mailboxes.newest(envelope))
            if newest is not None and newest[0] >= heading.sequence:
                if newest == (heading.sequence, envelope.digest):
                    return
                raise Refused(OLD, f"a later envelope of {name} to {heading.receiver} about this run came before")
            self._make_room(name, len(data))
            now = self._clock()
            self._on_disk(lambda: self._mailboxes.put(envelope, data, now))
        self._arrived(heading.receiver)

    def collect(self, token: str, most: int, run: str | None = None) -> list[bytes]:
        """The oldest envelopes that wait for the session's party, of together at most `most` bytes, or the first.

        `run`: about which they are, since a coordinator's drivers share its name; None: any.
        """
        with self._lock:
            name = self._name(token)
            return self._on_disk(lambda: self._mailboxes.of(name, most, run))

    def acknowledge(self, token: str, data: bytes) -> int:
        """Deletes envelopes that the session's party has (`acknowledgement`); returns how many were there."""
        digests, signature = _read("an acknowledgement", _ACKNOWLEDGEMENT, data, LARGEST_ACKNOWLEDGEMENT)
        taken = [bytes.fromhex(each) for each in digests]
        with self._lock:
            name = self._name(token)
            text = _taken_text(self._members.federation, name, taken)
            try:
                self._keys(name).check_signature(bytes.fromhex(signature), text)
            except ValueError as error:
                raise Refused(OTHER, str(error)) from None
            return self._on_disk(lambda: self._mailboxes.remove(name, taken))

    def name(self, token: str) -> str:
        """The party whose session this is."""
        with self._lock:
            return self._name(token)

    def seen(self, token: str) -> dict[str, Seen]:
        """Each party as the coordinator sees it; for its own sessions alone."""
        with self._lock:
            if self._name(token) != COORDINATOR:
                raise Refused(OTHER, "only the coordinator sees when the others came")
            now = self._clock()
            ago = {name: now - self._seen[name] for name in self._members.keys if name in self._seen}
            waiting = self._on_disk(lambda: {name: self._mailboxes.waiting(name) for name in self._members.keys})
            return {name: Seen(ago.get(name), count) for name, count in waiting.items()}

    def waiting(self) -> int:
        """Number of envelopes that wait."""
        with self._lock:
            return self._on_disk(self._mailboxes.count)

    def _make_room(self, name: str, size: int) -> None:
        """Drops what is too old. Raises Refused if the sender would have more waiting than its quota."""
        quotas = self.quotas
        self._on_disk(lambda: self._mailboxes.remove_before(self._clock() - quotas.days * 86400))
        held = self._on_disk(lambda: self._mailboxes.held(name))
        if held.envelopes >= quotas.envelopes or held.size + size > quotas.size:
            raise Refused(
                FULL,
                f"{held.envelopes} envelopes of {name} wait, of {held.size} bytes together; it holds "
                f"{quotas.envelopes} of a sender, and {quotas.size} bytes; try again when their receivers came",
            )

    def _name(self, token: str) -> str:
        session = self._sessions.get(token)
        if session is None or session.until <= self._clock():
            raise Refused(UNKNOWN, "there is no such session, or it has ended; open one")
        self._seen[session.name] = self._clock()
        return session.name

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


def _session_text(federation: str, name: str, challenge: bytes) -> bytes:
    return _SESSION + json.dumps([federation, name]).encode() + b"\n" + challenge


def _taken_text(federation: str, name: str, digests: list[bytes]) -> bytes:
    return _TAKEN + json.dumps([federation, name]).encode() + b"\n" + b"".join(digests)


def _read(kind: str, form: TypeAdapter[Any], data: bytes, most: int) -> Any:
    if type(data) is bytes and len(data) <= most:
        try:
            return form.validate_json(data)
        except ValueError:
            pass
    raise Refused(FORM, f"{kind} has other fields, or a value of it is out of bounds")


def _rebuilt(rebuild: Callable[[bytes], T], data: bytes) -> T:
    try:
        return rebuild(data)
    except ValueError as error:
        fault = str(error)
    raise Refused(FORM, fault)
