"""A party's client of a relay: it leaves envelopes there, and asks for those that wait.

Every call dials out. A session opens by itself, and again when the relay has forgotten it.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic_core import from_json

from fedcore.errors import RelayError
from fedcore.identity.envelope import Envelope
from fedcore.identity.keys import Identity
from fedcore.relay.acknowledgements import acknowledgement
from fedcore.relay.relay import LONG, Seen
from fedcore.relay.sessions import CHALLENGE_BYTES, UNKNOWN, claim
from tasks.outgoing import status
from tasks.relay.line import Line

SESSION = "fedcore-session"
"""Header with the token of a session."""
EXPECTED = "fedcore-expected"
"""Header with the number of envelopes that a call expects, for which the relay waits a moment longer."""
MOST, MOST_TOLD, MOST_REFUSED = 2**27, 2**20, 2**12
"""Bytes of envelopes in a response, of any other response, and of a refusal: a relay is not trusted."""
MOST_ENVELOPES, LARGEST_SIZES = 2**12, 2**16
MOST_TAKEN = 2**9
PORTION = 2**24
"""Bytes of the envelopes of one call, unless the first is longer."""
LATE = "late"
"""Code of the error about a proxy that did not wait for the relay's answer."""
FIRST, LONGEST = 0.5, 15.0
"""Seconds of the first pause after a failure, and of the longest."""

_STRICT = ConfigDict(strict=True)
_SIZES = TypeAdapter(
    Annotated[list[Annotated[int, Field(ge=1, le=MOST)]], Field(max_length=MOST_ENVELOPES)], config=_STRICT
)
_SEEN = TypeAdapter(dict[str, tuple[float | None, int]], config=ConfigDict())
_REFUSAL = TypeAdapter(tuple[Annotated[str, Field(max_length=40)], Annotated[str, Field(max_length=600)]])


def joined(envelopes: list[bytes]) -> bytes:
    """Envelopes as one body: a line with their sizes, then their bytes."""
    return b"".join([json.dumps([len(each) for each in envelopes]).encode(), b"\n", *envelopes])


def parted(data: bytes) -> list[bytes]:
    """The envelopes of a body that `joined` made. Raises ValueError for other bytes."""
    head, _, _ = data[:LARGEST_SIZES].partition(b"\n")
    sizes, at = _SIZES.validate_json(head), len(head) + 1
    if sum(sizes) != len(data) - at:
        raise ValueError("the sizes of envelopes are not those of the bytes")
    found = []
    for size in sizes:
        found.append(data[at : at + size])
        at += size
    return found


def _portions(envelopes: list[bytes]) -> Iterator[list[bytes]]:
    part: list[bytes] = []
    for each in envelopes:
        if part and (sum(map(len, part)) + len(each) > PORTION or len(part) >= MOST_ENVELOPES):
            yield part
            part = []
        part.append(each)
    if part:
        yield part


def _digests(envelopes: Sequence[bytes]) -> list[bytes]:
    found = []
    for each in envelopes:
        with contextlib.suppress(ValueError):  # the relay made it up
            found.append(Envelope.from_bytes(each).digest)
    return found


class Backoff:
    """Pauses after failures: each twice as long as the last, up to `LONGEST`, times a random number from 1/2 to 1.

    So parties that lost a relay together do not come back together.
    """

    def __init__(self, source: random.Random | None = None) -> None:
        self._source = source or random.SystemRandom()
        self._failures = 0

    def next(self) -> float:
        """Seconds of the next pause."""
        longest = min(LONGEST, FIRST * 2.0 ** min(self._failures, 16))
        self._failures += 1
        return longest * self._source.uniform(0.5, 1.0)

    def reset(self) -> None:
        """A call succeeded: the next pause is the shortest again."""
        self._failures = 0


class RelayClient:
    """The calls of the party `name` to the relay at `address`; every method may raise RelayError."""

    def __init__(self, address: str, federation: str, name: str, identity: Identity) -> None:
        self.address = address
        self._federation, self._name, self._identity = federation, name, identity
        self._line = Line(address)
        self._token: str | None = None
        self._taken: list[bytes] = []

    def deposit(self, envelope: bytes) -> None:
        """Leaves an envelope; the same one again changes nothing."""
        self._call("envelope", envelope)

    def deposit_all(self, envelopes: list[bytes]) -> None:
        """Leaves envelopes in as few calls as their sizes allow. If it fails, some of them may be there."""
        for part in _portions(envelopes):
            self._call("envelopes", joined(part))

    def collect(self, run: str = "") -> list[bytes]:
        """Envelopes that wait; waits for one as long as the relay lets it, and may find none.

        `run`: about which they are; empty: any. Acknowledges what was taken before.
        """
        return self.exchange([], run=run)

    def exchange(
        self, envelopes: list[bytes], taken: Sequence[bytes] = (), run: str = "", expected: int = 1
    ) -> list[bytes]:
        """As `collect`, in the call that leaves `envelopes`, and then acknowledges `taken`, which they answer.

        `expected`: number of envelopes for which the relay waits a moment longer. If it fails, some may be there.
        A proxy that waits for less than the relay makes a quiet call shorter: then none are found.
        """
        *first, last = list(_portions(envelopes)) or [[]]
        for part in first:
            self._call("envelopes", joined(part))
        answered = [*self._taken, *_digests(taken)]
        body = [run.encode(), b"\n", self._acknowledgement(answered)]
        if last:
            body += [b"\n", joined(last)]
        named = ({EXPECTED: str(expected)},) if expected > 1 else ()
        try:
            data = self._call("collect", b"".join(body), *named)
        except RelayError as error:
            if error.code != LATE:
                raise
            if last:  # the proxy may have lost them too, and envelopes that are there already change nothing
                self._call("envelopes", joined(last))
            self._taken = answered
            return []
        self._taken = []
        if not data:
            return []
        try:
            return parted(data)
        except ValueError:
            raise RelayError("answer", f"{self.address} sent something else than envelopes") from None

    def taken(self, envelopes: list[bytes]) -> None:
        """Acknowledges envelopes, with the next call of `collect` or `flush`; the relay then deletes them."""
        self._taken += _digests(envelopes)
        if len(self._taken) >= MOST_TAKEN:
            self.flush()

    def flush(self) -> None:
        """Acknowledges now what was taken."""
        if self._taken:
            self._call("taken", self._acknowledgement(self._taken))
            self._taken = []

    def _acknowledgement(self, taken: list[bytes]) -> bytes:
        return acknowledgement(self._identity, self._federation, self._name, taken) if taken else b""

    def renew(self, members: bytes) -> None:
        """Gives the relay a new list of members, which the coordinator has signed."""
        self._call("members", members)

    def seen(self) -> dict[str, Seen]:
        """Each party as the coordinator sees it."""
        data = self._call("seen", b"")
        try:
            return {name: Seen(*each) for name, each in _SEEN.validate_json(data).items()}
        except ValueError:
            raise RelayError("answer", f"{self.address} sent something else than a list of parties") from None

    def _call(self, path: str, body: bytes, headers: Mapping[str, str] = MappingProxyType({})) -> bytes:
        """The answer within a session, which is opened if there is none or the relay knows it no more."""
        for attempt in range(2):
            try:
                if self._token is None:
                    self._token = self._opened()
                return self._post(path, body, {SESSION: self._token, **headers})
            except RelayError as error:
                if error.code != UNKNOWN or attempt:
                    raise
                self._token = None
        raise RuntimeError("unreachable")

    def _opened(self) -> str:
        challenge = self._post("challenge", b"", {})
        if len(challenge) != CHALLENGE_BYTES:
            raise RelayError("answer", f"{self.address} sent something else than a challenge")
        token = self._post("session", claim(self._identity, self._federation, self._name, challenge), {})
        if len(token) > 100 or not token.isalnum():
            raise RelayError("answer", f"{self.address} sent something else than a session")
        return token.decode()

    def _post(self, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        bound = MOST if path == "collect" else MOST_TOLD
        number, data = self._line.post(path, body, headers, {200: bound, 204: bound}, MOST_REFUSED)
        if number in (200, 204):
            return data
        raise self._refusal(number, data, len(body))

    def _refusal(self, number: int, data: bytes, sent: int) -> RelayError:
        """The error of a response with this status: a relay's refusal, or one of a proxy on the way."""
        try:
            values = from_json(data)
            code, sentence = _REFUSAL.validate_python((values["code"], values["sentence"]))
        except (ValueError, KeyError, TypeError):
            which = f"{self.address}, or a proxy on the way, answered with status {status(number)}"
            if number == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:  # as long as the proxy's settings stay: it is not retried
                return RelayError(LONG, f"{which} to a body of {sent} bytes")
            if number == HTTPStatus.FORBIDDEN:
                return RelayError("answer", f"{which}; a relay takes calls under its invitation's name and port")
            return RelayError(LATE if number == HTTPStatus.GATEWAY_TIMEOUT else "answer", which)
        return RelayError(code, f"{self.address}: {sentence}")
