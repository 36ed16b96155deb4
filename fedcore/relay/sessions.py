"""Challenges and sessions of a relay, in memory: which party a caller has proved to be."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter

from fedcore.errors import Refused
from fedcore.identity.envelope import PARTY
from fedcore.identity.keys import Identity, PublicIdentity

UNKNOWN = "unknown"
"""Code of a refusal: no session, or no party of the list."""
FORM = "form"
CHALLENGE_BYTES = 32
CHALLENGED, OPEN = 60.0, 900.0
"""Seconds for which a challenge and a session last."""
MOST_CHALLENGES, MOST_SESSIONS = 2**14, 32
"""Challenges at a time, and sessions of one party; above them the oldest end."""
LARGEST_CLAIM = 2**10
_SESSION = b"fedcore relay, session\0"

_CLAIM = TypeAdapter(
    tuple[
        Annotated[str, Field(pattern=PARTY)],
        Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")],
        Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")],
    ],
    config=ConfigDict(strict=True),
)


@dataclass(frozen=True)
class _Session:
    name: str
    until: float


def claim(identity: Identity, federation: str, name: str, challenge: bytes) -> bytes:
    """A party's claim to a session, in answer to a challenge."""
    signature = identity.sign(_text(federation, name, challenge))
    return json.dumps([name, challenge.hex(), signature.hex()]).encode()


class Sessions:
    """Open sessions by token. All methods are safe from any thread, and hold no lock for long."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._challenges: dict[bytes, float] = {}
        self._sessions: dict[str, _Session] = {}
        self._seen: dict[str, float] = {}

    def challenge(self) -> bytes:
        """A new challenge, which opens one session."""
        made = secrets.token_bytes(CHALLENGE_BYTES)
        with self._lock:
            now = self._clock()
            while self._challenges:  # in the order of their ends
                first = next(iter(self._challenges))
                if self._challenges[first] > now and len(self._challenges) < MOST_CHALLENGES:
                    break
                del self._challenges[first]
            self._challenges[made] = now + CHALLENGED
        return made

    def open(self, data: bytes, federation: str, keys: Callable[[str], PublicIdentity]) -> str:
        """The token of a session for the party that signed a challenge (`claim`). Raises Refused."""
        try:
            if len(data) > LARGEST_CLAIM:
                raise ValueError
            name, challenge, signature = _CLAIM.validate_json(data)
        except ValueError:
            raise Refused(FORM, "a claim has other fields, or a value of it is out of bounds") from None
        nonce = bytes.fromhex(challenge)
        with self._lock:
            fresh = self._challenges.pop(nonce, 0.0) > self._clock()
        if not fresh:
            raise Refused(UNKNOWN, "this challenge was not made here, is used, or is too old")
        try:
            keys(name).check_signature(bytes.fromhex(signature), _text(federation, name, nonce))
        except ValueError as error:
            raise Refused(UNKNOWN, str(error)) from None
        token = secrets.token_hex(32)
        with self._lock:
            now = self._clock()
            self._sessions = {each: known for each, known in self._sessions.items() if known.until > now}
            mine = [each for each, known in self._sessions.items() if known.name == name]
            for each in mine[: max(0, len(mine) - MOST_SESSIONS + 1)]:
                del self._sessions[each]
            self._sessions[token] = _Session(name, now + OPEN)
        return token

    def name(self, token: str) -> str:
        """The party whose session this is. Raises Refused."""
        with self._lock:
            now, session = self._clock(), self._sessions.get(token)
            if session is None or session.until <= now:
                raise Refused(UNKNOWN, "there is no such session, or it has ended; open one")
            self._seen[session.name] = now
            return session.name

    def seen(self) -> dict[str, float]:
        """Seconds since the last request of each party that came."""
        with self._lock:
            now = self._clock()
            return {name: now - at for name, at in self._seen.items()}

    def end(self, names: Collection[str]) -> None:
        """Ends all sessions of these parties."""
        with self._lock:
            self._sessions = {token: each for token, each in self._sessions.items() if each.name not in names}


def _text(federation: str, name: str, challenge: bytes) -> bytes:
    return _SESSION + json.dumps([federation, name]).encode() + b"\n" + challenge
