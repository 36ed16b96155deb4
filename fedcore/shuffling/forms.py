"""Messages to and from a shuffler: JSON of declared fields, followed by sealed bytes. Each has one form.

The server opens a round at the shuffler, the participants' sites send envelopes, and the server collects the batch.
`from_bytes` rebuilds a message that arrives, and raises ValueError with a public sentence for other bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, TypeAdapter

from fedcore.errors import InputError
from fedcore.limits import LARGEST_AGREEMENT, MOST_SILOS, MOST_WEIGHTS
from fedcore.messages import Release
from fedcore.planning.problem import LONGEST_NAME
from fedcore.planning.shuffle import LONGEST_DEADLINE
from fedcore.shuffling.sealing import OVERHEAD, seal, sealed_length

LARGEST_OPENING = LARGEST_AGREEMENT
"""Bytes of an opening at most: its names are in the run's agreement too."""
LARGEST_HEAD = 2**13
"""Bytes of the fields of any other message: two names of `LONGEST_NAME`, each character escaped, and some numbers."""
LARGEST_ENVELOPE = sealed_length(MOST_WEIGHTS) + 2**12

SHORTEST_SECRET, LONGEST_SECRET = 32, 512
"""Length in characters of the secret of a shuffler's callers."""
_TOKEN = rf"[A-Za-z0-9._~+/-]{{{SHORTEST_SECRET},}}={{0,2}}"
"""A bearer's token (RFC 6750, section 2.1)."""

_STRICT = ConfigDict(strict=True)
_Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
_Number = Annotated[int, Field(ge=1, lt=2**63)]
_Silos = Annotated[int, Field(ge=1, le=MOST_SILOS)]
_Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Secret = Annotated[str, Field(pattern=rf"^({_TOKEN})?$", max_length=LONGEST_SECRET)]
_Seconds = Annotated[float, Field(gt=0, le=LONGEST_DEADLINE)]
_Sealed = Annotated[int, Field(ge=sealed_length(1), le=sealed_length(MOST_WEIGHTS))]


@dataclass(frozen=True)
class Address:
    """Address of a round: its run, phase and round."""

    run: str
    phase: int
    round: int

    def __str__(self) -> str:
        return f"round {self.phase}.{self.round} of run {self.run}"


@dataclass(frozen=True)
class Opening:
    """A server's opening of a round: its participants and the length of a sealed message (bytes).

    `minimum`: of messages in the batch; `deadline`: seconds after which it is handed on without the missing ones;
    `question`: digest of the silos' question (hex); `key`: public key to which messages are sealed (hex); `owner`:
    `ServerKey.owner`.
    """

    at: Address
    participants: tuple[str, ...]
    minimum: int
    deadline: float
    length: int
    question: str
    key: str
    owner: str = field(repr=False)

    def to_bytes(self) -> bytes:
        head = [*_listed(self.at), list(self.participants), self.minimum, self.deadline, self.length]
        return json.dumps([*head, self.question, self.key, self.owner]).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Opening:
        run, phase, round, names, minimum, deadline, length, question, key, owner = _read(
            "an opening", _OPENING, data, LARGEST_OPENING
        )
        if len(set(names)) < len(names):
            raise ValueError("an opening names each participant once")
        found = cls(Address(run, phase, round), tuple(names), minimum, deadline, length, question, key, owner)
        return _same("an opening", found, data)


@dataclass(frozen=True)
class Envelope:
    """A silo's sealed message of a round. `key`: to which it is sealed (hex).

    `minimum`: least number of messages in its batch, to which the silo agreed. `question`: digest of the question that
    it answers (hex). A batch holds answers to one question only, or a server could identify silos by their questions.
    """

    at: Address
    silo: str
    minimum: int
    question: str
    key: str
    sealed: bytes = field(repr=False)

    def to_bytes(self) -> bytes:
        head = [*_listed(self.at), self.silo, self.minimum, self.question, self.key]
        return json.dumps(head).encode() + b"\n" + self.sealed

    @classmethod
    def from_bytes(cls, data: bytes) -> Envelope:
        head, _, sealed = data.partition(b"\n")
        run, phase, round, silo, minimum, question, key = _read("an envelope", _ENVELOPE, head)
        if len(sealed) <= OVERHEAD:
            raise ValueError("an envelope holds a sealed message")
        found = cls(Address(run, phase, round), silo, minimum, question, key, sealed)
        return _same("an envelope", found, data)


@dataclass(frozen=True)
class Request:
    """A server's request for the batch of a round, or with `ends` its notice that the run needs no further batch."""

    at: Address
    owner: str = field(repr=False)
    ends: bool = False

    def to_bytes(self) -> bytes:
        return json.dumps([*_listed(self.at), self.owner, self.ends]).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Request:
        run, phase, round, owner, ends = _read("a request", _REQUEST, data)
        return _same("a request", cls(Address(run, phase, round), owner, ends), data)


@dataclass(frozen=True)
class SealedBatch:
    """Sealed messages of a round, all of one length, in random order."""

    at: Address
    messages: tuple[bytes, ...] = field(repr=False)

    def to_bytes(self) -> bytes:
        head = json.dumps([*_listed(self.at), len(self.messages), len(self.messages[0])]).encode()
        return b"".join([head, b"\n", *self.messages])

    @classmethod
    def from_bytes(cls, data: bytes) -> SealedBatch:
        head, _, rest = data.partition(b"\n")
        run, phase, round, count, length = _read("a batch", _BATCH, head)
        if len(rest) != count * length:
            raise ValueError("a batch is cut, or has a tail")
        messages = tuple(rest[at : at + length] for at in range(0, len(rest), length))
        return _same("a batch", cls(Address(run, phase, round), messages), data)


@dataclass(frozen=True)
class Route:
    """The path of a run's answers: the shuffler's address and the server's `key` (hex) to which they are sealed.

    `patience`: seconds for which a silent shuffler is tried again. `secret`: of the shuffler's callers (`is_secret`);
    empty if it needs none.
    """

    address: str
    key: str
    patience: float
    secret: str = field(default="", repr=False)

    def envelope(self, run: str, release: Release, minimum: int) -> Envelope:
        """Seals the release for a batch of at least `minimum`. Raises InputError for an invalid key."""
        try:
            sealed = seal(bytes.fromhex(self.key), release.query_digest, release.payload)
        except ValueError as error:
            raise InputError(str(error)) from None
        at, question = Address(run, release.phase, release.round), release.query_digest.hex()
        return Envelope(at, release.silo, minimum, question, self.key, sealed)

    def to_bytes(self) -> bytes:
        return json.dumps([self.address, self.key, self.patience, self.secret]).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Route:
        address, key, patience, secret = _read("a route", _ROUTE, data)
        try:
            check_address("its address", address)
        except InputError:
            raise ValueError("a route has an address as http://host:port") from None
        return _same("a route", cls(address, key, patience, secret), data)


class Carrier(Protocol):
    """Takes an envelope to the shuffler at an address, with the secret if it needs one.

    Raises ShufflerError if the shuffler does not accept it.
    """

    def __call__(self, address: str, envelope: bytes, patience: float, secret: str = "") -> None: ...


def is_secret(text: str) -> bool:
    """True if the text has the form of a caller's secret."""
    return len(text) <= LONGEST_SECRET and re.fullmatch(_TOKEN, text) is not None


def check_address(key: str, address: str) -> None:
    """Raises InputError, naming the config key, for text that is no address of a shuffler."""
    fault = len(address) > 300 or not address.isprintable()
    try:
        parts = urlsplit(address)
        fault = fault or parts.scheme not in ("http", "https") or not parts.hostname or parts.port is None
        fault = fault or parts.username is not None or bool(parts.path.strip("/") or parts.query or parts.fragment)
    except ValueError:
        fault = True
    if fault:
        raise InputError(f"{key} = {address[:80]!r} is no address of a shuffler: write http://host:port, or https://")


_OPENING = TypeAdapter(
    tuple[
        _Name,
        _Number,
        _Number,
        Annotated[list[_Name], Field(min_length=1, max_length=MOST_SILOS)],
        _Silos,
        _Seconds,
        _Sealed,
        _Hex,
        _Hex,
        _Hex,
    ],
    config=_STRICT,
)
_ENVELOPE = TypeAdapter(tuple[_Name, _Number, _Number, _Name, _Silos, _Hex, _Hex], config=_STRICT)
_REQUEST = TypeAdapter(tuple[_Name, _Number, _Number, _Hex, bool], config=_STRICT)
_BATCH = TypeAdapter(tuple[_Name, _Number, _Number, _Silos, _Sealed], config=_STRICT)
_ROUTE = TypeAdapter(tuple[str, _Hex, _Seconds, _Secret], config=_STRICT)


def _listed(at: Address) -> Sequence[Any]:
    return at.run, at.phase, at.round


def _read(kind: str, form: TypeAdapter[Any], data: bytes, most: int = LARGEST_HEAD) -> Any:
    if type(data) is bytes and len(data) <= most:
        try:
            return form.validate_json(data)
        except ValueError:
            pass
    raise ValueError(f"{kind} has other fields, or a value of it is out of bounds")


def _same(kind: str, found: Any, data: bytes) -> Any:
    """The object `found`. Raises ValueError unless `data` are its one form."""
    if found.to_bytes() != data:
        raise ValueError(f"{kind} has one form, and this is another")
    return found
