"""What travels: queries to silos, and releases, the only type that may leave one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter

from fedcore.arrays import Vector, digest, pack, unpack
from fedcore.limits import LARGEST_AGREEMENT, LARGEST_RECEIPTS, LONGEST_ADDRESS

BOUND = 1e12
"""Largest absolute value that a query's array may hold, whatever it means; far below overflow. Models are held to the
plan's domain besides (`fedcore.silo.question`)."""
DIGEST_BYTES = 32
PORTION = 10_000
"""Receipts that travel together."""

_STRICT = ConfigDict(strict=True)
_Number = Annotated[int, Field(ge=1, lt=2**63)]
_HEAD = TypeAdapter(tuple[str, str, _Number, _Number, list[str]], config=_STRICT)
_BUNDLE = TypeAdapter(tuple[_Number, _Number, list[str]], config=_STRICT)
_ADDRESSES = TypeAdapter(list[tuple[str, _Number, _Number]], config=_STRICT)


def _short(head: bytes, most: int) -> bytes:
    """What is read as JSON, some 25 times as large as objects. Raises ValueError if it is longer."""
    if len(head) > most:
        raise ValueError(f"{len(head)} bytes of names and addresses are more than {most}")
    return head


def is_bounded(array: np.ndarray) -> bool:
    """Whether all entries are numbers below `BOUND`."""
    return bool(np.abs(array).max(initial=0.0) < BOUND)


@dataclass(frozen=True)
class Query:
    """One round's question: plain data, never code. `arrays` are what every participant receives.

    `own`: by silo, further arrays that only this silo receives, under other names; empty where all are asked alike.
    It keeps nothing that follows from its fields: a digest that came along with it would be the asker's claim.
    """

    run: str
    plan: str
    phase: int
    round: int
    participants: tuple[str, ...]
    arrays: dict[str, np.ndarray] = field(repr=False)
    own: dict[str, dict[str, np.ndarray]] = field(default_factory=dict, repr=False)

    def asked(self, silo: str) -> dict[str, np.ndarray]:
        """All that this silo receives."""
        return {**self.arrays, **self.own[silo]} if silo in self.own else self.arrays

    def digests(self, silos: Iterable[str]) -> dict[str, bytes]:
        """By silo the SHA-256 (32 bytes) over run, plan, address and what it receives; not over who else was asked."""
        common = None
        found = {}
        for silo in silos:
            if silo in self.own:
                found[silo] = self._digest(self.asked(silo))
                continue
            if common is None:
                common = self._digest(self.arrays)
            found[silo] = common
        return found

    def _digest(self, arrays: dict[str, np.ndarray]) -> bytes:
        address = f"{self.phase}.{self.round}".encode()
        return digest(self.run.encode(), self.plan.encode(), address, pack(arrays))

    def at(self, silos: Collection[str]) -> Query:
        """The part of the question that a site with these silos needs: nobody else's own arrays."""
        if not self.own:
            return self
        return replace(self, own={name: own for name, own in self.own.items() if name in silos})

    def to_bytes(self) -> bytes:
        """The form in which it travels and is kept: a JSON line and the packed arrays, a silo's own as `name@silo`."""
        head = [self.run, self.plan, self.phase, self.round, list(self.participants)]
        owned = {f"{name}@{silo}": array for silo, own in self.own.items() for name, array in own.items()}
        return json.dumps(head).encode() + b"\n" + pack({**self.arrays, **owned})

    @classmethod
    def from_bytes(cls, data: bytes) -> Query:
        """The query that `to_bytes` wrote. Raises ValueError for all other bytes: each query has one form."""
        if type(data) is not bytes:
            raise ValueError("a query is bytes")
        head, _, rest = data.partition(b"\n")
        try:
            run, plan, phase, round, names = _HEAD.validate_json(_short(head, LARGEST_AGREEMENT))
        except ValueError:
            raise ValueError("a query begins with run, plan, phase, round and participants") from None
        arrays: dict[str, np.ndarray] = {}
        own: dict[str, dict[str, np.ndarray]] = {}
        for key, array in unpack(rest).items():
            name, _, silo = key.partition("@")
            (own.setdefault(silo, {}) if silo else arrays)[name] = array
        query = cls(run, plan, phase, round, tuple(names), arrays, own)
        if query.to_bytes() != data:
            raise ValueError("a query has one form, and this is another")
        return query


class Receipt(NamedTuple):
    """What everybody may keep of a release: its address and digests, not its content."""

    silo: str
    phase: int
    round: int
    query_digest: bytes
    payload_digest: bytes


def kept(receipts: Iterable[Receipt]) -> bytes:
    """Receipts in the form in which they travel and are kept: a JSON line of addresses, and their digests."""
    listed = list(receipts)
    addresses = json.dumps([receipt[:3] for receipt in listed]).encode() + b"\n"
    return b"".join([addresses, *(digested for receipt in listed for digested in receipt[3:])])


def portions(receipts: Iterable[Receipt]) -> Iterator[list[Receipt]]:
    """The receipts, `PORTION` at a time: of a long run all of them would be in memory several times over."""
    waiting = iter(receipts)
    while portion := list(islice(waiting, PORTION)):
        yield portion


def receipts_of(data: bytes) -> list[Receipt]:
    """The receipts that `kept` wrote. Raises ValueError for other bytes."""
    if type(data) is not bytes:
        raise ValueError("receipts are bytes")
    head, _, rest = data.partition(b"\n")
    digested = len(rest) // (2 * DIGEST_BYTES)
    try:
        addresses = _ADDRESSES.validate_json(_short(head, min(LARGEST_RECEIPTS, (1 + digested) * LONGEST_ADDRESS)))
    except ValueError:
        raise ValueError("receipts begin with silo, phase and round of each") from None
    if len(rest) != 2 * DIGEST_BYTES * len(addresses):
        raise ValueError(f"{len(addresses)} receipts have two digests of {DIGEST_BYTES} bytes each")
    digests = (rest[at : at + DIGEST_BYTES] for at in range(0, len(rest), DIGEST_BYTES))
    return [Receipt(*address, next(digests), next(digests)) for address in addresses]


class Release(NamedTuple):
    """A committed, charged and noised answer of one silo; `payload` is float64 (d,)."""

    silo: str
    phase: int
    round: int
    query_digest: bytes
    payload_digest: bytes
    payload: Vector

    @property
    def receipt(self) -> Receipt:
        return Receipt(*self[:5])


class Batch(NamedTuple):
    """Answers to one query that nobody's name is on, each float64 (d,): what a shuffler handed on, opened.

    In the order of their bytes, so that sums have the same bits in whatever order they were handed on.
    """

    payloads: tuple[Vector, ...]

    @classmethod
    def of(cls, payloads: Iterable[Vector]) -> Batch:
        return cls(tuple(sorted(payloads, key=lambda payload: payload.tobytes())))


def bundled(query: Query, releases: Sequence[Release]) -> bytes:
    """The releases of one site to `query` (there may be none) in the form in which they travel.

    A JSON line (phase, round, silos), the query digests, and the payloads row after row: one buffer, where Dask would
    serialise each array by itself, some 50 microseconds each. Digests of payloads are the reader's to compute.
    """
    head = json.dumps([query.phase, query.round, [release.silo for release in releases]]).encode() + b"\n"
    asked = [release.query_digest for release in releases]
    return b"".join([head, *asked, *(release.payload.tobytes() for release in releases)])


def unbundled(data: bytes, *lengths: int) -> list[Release]:
    """The releases that `bundled` wrote, of payloads that all have one of these lengths. Raises
    ValueError for others."""
    head, _, rest = data.partition(b"\n")
    phase, round, silos = _BUNDLE.validate_json(_short(head, LARGEST_AGREEMENT))
    digests = DIGEST_BYTES * len(silos)
    dim = (len(rest) - digests) // (8 * len(silos)) if silos else lengths[0]
    if dim not in lengths or len(rest) != digests + 8 * dim * len(silos):
        raise ValueError(f"{len(rest)} bytes are not the answers of {len(silos)} silos")
    matrix = np.frombuffer(rest, dtype=np.float64, offset=digests).reshape(len(silos), dim)
    asked = [rest[at : at + DIGEST_BYTES] for at in range(0, digests, DIGEST_BYTES)]
    sent = [hashlib.sha256(row.data).digest() for row in matrix]
    each = zip(silos, asked, sent, matrix, strict=True)
    return [Release(silo, phase, round, query, digested, row) for silo, query, digested, row in each]
