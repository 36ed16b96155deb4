"""Messages: queries to silos, and releases, the only type that may leave one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import islice
from typing import Annotated, Any, NamedTuple, overload

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter

from fedcore.arrays import Matrix, Vector, digest, pack, unpack
from fedcore.limits import LARGEST_AGREEMENT, LARGEST_RECEIPTS, LONGEST_ADDRESS

BOUND = 1e12
"""Largest absolute value in a query's arrays, whatever they mean; far below overflow. Models must also lie in the
plan's domain (`fedcore.silo.question`)."""
DIGEST_BYTES = 32
PORTION = 10_000
"""Receipts of one message."""

_STRICT = ConfigDict(strict=True)
_Number = Annotated[int, Field(ge=1, lt=2**63)]
_HEAD = TypeAdapter(tuple[str, str, _Number, _Number, list[str]], config=_STRICT)
_ADDRESS = TypeAdapter(tuple[_Number, _Number], config=_STRICT)
_NAMES = TypeAdapter(tuple[str, ...], config=_STRICT)
_ADDRESSES = TypeAdapter(list[tuple[str, _Number, _Number]], config=_STRICT)


def _short(head: bytes, most: int) -> bytes:
    """Returns JSON of at most `most` bytes, as objects some 25 times as large; else ValueError."""
    if len(head) > most:
        raise ValueError(f"{len(head)} bytes of names and addresses are more than {most}")
    return head


def is_bounded(array: np.ndarray) -> bool:
    """Checks that all entries are numbers below `BOUND` in size."""
    return bool(np.abs(array).max(initial=0.0) < BOUND)


@dataclass(frozen=True)
class Query:
    """One round's question: plain data, never code. Every participant receives `arrays`.

    `own`: by silo, further arrays under other names that only this silo receives; empty where all receive the same.
    No field is derived from the others: a digest sent along would be an unchecked claim of the driver.
    """

    run: str
    plan: str
    phase: int
    round: int
    participants: tuple[str, ...]
    arrays: dict[str, np.ndarray] = field(repr=False)
    own: dict[str, dict[str, np.ndarray]] = field(default_factory=dict, repr=False)

    def arrays_for(self, silo: str) -> dict[str, np.ndarray]:
        """All arrays that this silo receives."""
        return {**self.arrays, **self.own[silo]} if silo in self.own else self.arrays

    def digests(self, silos: Iterable[str]) -> dict[str, bytes]:
        """By silo, SHA-256 (32 bytes) of run, plan, address and its arrays, not participants."""
        if not self.own:
            return dict.fromkeys(silos, self._digest(self._packed))
        common = self._digest(pack(self.arrays))
        return {silo: self._digest(pack(self.arrays_for(silo))) if silo in self.own else common for silo in silos}

    def _digest(self, packed: bytes) -> bytes:
        address = f"{self.phase}.{self.round}".encode()
        return digest(self.run.encode(), self.plan.encode(), address, packed)

    @cached_property
    def _packed(self) -> bytes:
        owned = {f"{name}@{silo}": array for silo, own in self.own.items() for name, array in own.items()}
        return pack({**self.arrays, **owned})

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def _head(self) -> bytes:
        return json.dumps([self.run, self.plan, self.phase, self.round, self.participants]).encode()

    def at(self, silos: Collection[str]) -> Query:
        """The query without the own arrays of all other silos, for the site of these."""
        if not self.own:
            return self
        return replace(self, own={name: own for name, own in self.own.items() if name in silos})

    def among(self, silos: Collection[str]) -> Query:
        """The query to those of its participants that are in `silos`; their digests stay the same."""
        kept = tuple(name for name in self.participants if name in silos)
        return replace(self, participants=kept, own={name: own for name, own in self.own.items() if name in kept})

    def to_bytes(self) -> bytes:
        """Byte form for messages and storage: a JSON line and packed arrays, own as `name@silo`."""
        return self._head() + b"\n" + self._packed

    @classmethod
    def from_bytes(cls, data: bytes) -> Query:
        """The query that `to_bytes` wrote. Raises ValueError for all other bytes."""
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
            name, of_one, silo = key.partition("@")
            (own.setdefault(silo, {}) if of_one else arrays)[name] = array
        query = cls(run, plan, phase, round, tuple(names), arrays, own)
        if query._head() != head or "" in own:
            raise ValueError("a query has one form, and this is another")
        query.__dict__["_packed"] = rest  # packed arrays have one form, which `unpack` has checked
        return query


class Receipt(NamedTuple):
    """Public record of a release: its address and digests, without its content."""

    silo: str
    phase: int
    round: int
    query_digest: bytes
    payload_digest: bytes


def packed_receipts(receipts: Iterable[Receipt]) -> bytes:
    """Byte form of receipts for messages and storage: a JSON line of addresses, then digests."""
    listed = list(receipts)
    addresses = json.dumps([receipt[:3] for receipt in listed]).encode() + b"\n"
    return b"".join([addresses, *(digested for receipt in listed for digested in receipt[3:])])


def portions(receipts: Iterable[Receipt]) -> Iterator[list[Receipt]]:
    """The receipts, `PORTION` at a time, since those of a long run would fill memory."""
    waiting = iter(receipts)
    while portion := list(islice(waiting, PORTION)):
        yield portion


def receipts_of(data: bytes) -> list[Receipt]:
    """The receipts that `packed_receipts` wrote. Raises ValueError for other bytes."""
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
    """Decrypted answers to one query, each float64 (d,), as a shuffler delivered them, unnamed.

    They are sorted by their bytes, so that sums have the same bits in whatever order they arrived.
    """

    payloads: tuple[Vector, ...]

    @classmethod
    def of(cls, payloads: Iterable[Vector]) -> Batch:
        return cls(tuple(sorted(payloads, key=lambda payload: payload.tobytes())))


class Releases(Sequence[Release]):
    """The releases of some silos to one query, in columns; an item is a `Release`.

    `silos`: names, in order. `query_digests`: of their questions. `payloads`: float64 (silos, length), read-only.
    """

    def __init__(
        self, phase: int, round: int, silos: Sequence[str], query_digests: Sequence[bytes], payloads: Matrix
    ) -> None:
        self.phase, self.round = phase, round
        self.silos, self.query_digests, self.payloads = tuple(silos), tuple(query_digests), payloads

    @classmethod
    def of(cls, query: Query, releases: Sequence[Release]) -> Releases:
        """One site's releases to `query`, of which there may be none; their payloads have one length."""
        payloads = np.array([release.payload for release in releases]) if releases else np.empty((0, 0))
        silos, queries = [each.silo for each in releases], [each.query_digest for each in releases]
        return cls(query.phase, query.round, silos, queries, payloads)

    def to_bytes(self) -> bytes:
        """Byte form: JSON lines of phase and round and of silos, the query digests, and the payloads row after row.

        Dask would serialise each array by itself, at some 50 microseconds each.
        """
        head = f"[{self.phase},{self.round}]\n{json.dumps(self.silos)}\n".encode()
        return b"".join([head, *self.query_digests, self.payloads.tobytes()])

    @classmethod
    def from_bytes(cls, data: bytes, *lengths: int) -> Releases:
        """The releases that `to_bytes` wrote. Raises ValueError unless all have one of `lengths`."""
        address, _, rest = data.partition(b"\n")
        names, _, rest = rest.partition(b"\n")
        phase, round = _ADDRESS.validate_json(_short(address, LONGEST_ADDRESS))
        silos = _NAMES.validate_json(_short(names, LARGEST_AGREEMENT))
        digests = DIGEST_BYTES * len(silos)
        dim = (len(rest) - digests) // (8 * len(silos)) if silos else lengths[0]
        if dim not in lengths or len(rest) != digests + 8 * dim * len(silos):
            raise ValueError(f"{len(rest)} bytes are not the answers of {len(silos)} silos")
        queries = [rest[at : at + DIGEST_BYTES] for at in range(0, digests, DIGEST_BYTES)]
        payloads = np.frombuffer(rest, dtype=np.float64, offset=digests).reshape(len(silos), dim)
        return cls(phase, round, silos, queries, payloads)

    @classmethod
    def joined(cls, query: Query, parts: Sequence[Releases]) -> Releases:
        """The releases of several sites to one query, in the order of its participants, each of which has one.

        `parts`: with payloads of one length.
        """
        parts = [part for part in parts if len(part)]
        if not parts:
            return cls(query.phase, query.round, (), (), np.empty((0, 0)))
        rows = {silo: row for row, silo in enumerate(silo for part in parts for silo in part.silos)}
        order = [rows[silo] for silo in query.participants]
        queries = [digested for part in parts for digested in part.query_digests]
        payloads = np.concatenate([part.payloads for part in parts])[order]
        return cls(query.phase, query.round, query.participants, [queries[row] for row in order], payloads)

    @cached_property
    def payload_digests(self) -> tuple[bytes, ...]:
        """SHA-256 of each payload, computed by the reader, never sent."""
        return tuple([hashlib.sha256(row.data).digest() for row in np.ascontiguousarray(self.payloads)])

    @property
    def receipts(self) -> list[Receipt]:
        columns = zip(self.silos, self.query_digests, self.payload_digests, strict=True)
        return [Receipt(silo, self.phase, self.round, query, payload) for silo, query, payload in columns]

    def __len__(self) -> int:
        return len(self.silos)

    @overload
    def __getitem__(self, place: int) -> Release: ...
    @overload
    def __getitem__(self, place: slice) -> list[Release]: ...
    def __getitem__(self, place: int | slice) -> Release | list[Release]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        digests = self.query_digests[place], self.payload_digests[place]
        return Release(self.silos[place], self.phase, self.round, *digests, self.payloads[place])
