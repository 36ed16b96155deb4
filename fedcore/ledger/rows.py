"""The releases of a run in a ledger's memory: by address, packed, without their bytes."""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fedcore.accounting.events import GaussianRelease
from fedcore.arrays import Matrix
from fedcore.ledger.blocks import BLOCK, Blocks
from fedcore.messages import DIGEST_BYTES

_RECORD = struct.Struct(f"<QQQI{DIGEST_BYTES}s{DIGEST_BYTES}s")
"""Phase, round, number in the ledger, number of the event, digests of query and payload."""


_ADDRESS = struct.Struct("<QQI")
"""Phase, round and number of the events of a round of several silos."""


class Row(NamedTuple):
    """One release: address, query it answered, event, and bytes (None where only the digest is stored)."""

    phase: int
    round: int
    query_digest: bytes
    event: GaussianRelease
    payload_digest: bytes
    payload: bytes | None


class RoundRows(NamedTuple):
    """The rows of several silos' releases in one round, in columns. `payloads`: float64 (silos, length)."""

    phase: int
    round: int
    query_digests: Sequence[bytes]
    events: Sequence[GaussianRelease]
    payload_digests: Sequence[bytes]
    payloads: Matrix

    def row(self, at: int) -> Row:
        """The row of the silo at this position."""
        found = self.query_digests[at], self.events[at], self.payload_digests[at]
        return Row(self.phase, self.round, *found, self.payloads[at].tobytes())


class RoundLog:
    """The rows of all releases of some silos over rounds with all of them, at 64 bytes a release.

    One operation adds a round, so an interruption stores it for all silos or for none. `newest`: the last round, with
    its bytes. Addresses grow.
    """

    def __init__(self, silos: int) -> None:
        self._silos = silos
        size = _ADDRESS.size + 2 * DIGEST_BYTES * silos
        self._records = Blocks(size, True, max(1, BLOCK * _RECORD.size // size))
        self._events: list[tuple[int, Sequence[GaussianRelease]]] = []
        """Events of all silos, with the place of the first round that has them."""
        self.newest: RoundRows | None = None

    def __len__(self) -> int:
        return len(self._records)

    def is_next(self, phase: int, round: int) -> bool:
        """True if the address is after those of all rounds."""
        # Not of `newest`, which an interruption may leave a round behind.
        return not len(self) or (phase, round) > self._address(len(self) - 1)

    def append(self, rows: RoundRows) -> None:
        """Stores a round of all silos, whose address `is_next`."""
        if not self._events or rows.events is not self._events[-1][1]:
            self._events.append((len(self), rows.events))
        address = _ADDRESS.pack(rows.phase, rows.round, len(self._events) - 1)
        self._records.append(b"".join([address, *rows.query_digests, *rows.payload_digests]))
        self.newest = rows

    def place(self, phase: int, round: int) -> int | None:
        """Place of the round with this address, from 0; None if there is none."""
        place = bisect_left(range(len(self)), (phase, round), key=self._address)
        return place if place < len(self) and self._address(place) == (phase, round) else None

    def after(self, address: tuple[int, int]) -> range:
        """Places of the rounds after this address."""
        return range(bisect_right(range(len(self)), address, key=self._address), len(self))

    def row(self, place: int, at: int) -> Row:
        """The row of the silo at position `at` in the round at this place; with its bytes only in the newest round."""
        record = self._records[place]
        phase, round, events = _ADDRESS.unpack_from(record)
        if self.newest is not None and self.newest[:2] == (phase, round):
            return self.newest.row(at)
        first = _ADDRESS.size + DIGEST_BYTES * at
        second = first + DIGEST_BYTES * self._silos
        digests = record[first : first + DIGEST_BYTES], record[second : second + DIGEST_BYTES]
        return Row(phase, round, digests[0], self._events[events][1][at], digests[1], None)

    def events(self, at: int) -> list[GaussianRelease]:
        """The event of each release of the silo at this position; equal ones of one phase are the same object."""
        ends = [first for first, _ in self._events[1:]] + [len(self)]
        found = ([events[at]] * (end - first) for (first, events), end in zip(self._events, ends, strict=True))
        return [event for same in found for event in same]

    def _address(self, place: int) -> tuple[int, int]:
        phase, round, _ = _ADDRESS.unpack_from(self._records[place])
        return phase, round


def check_row(row: Row) -> None:
    """Raises ValueError for a row that cannot be packed; called before the row is written."""
    if not len(row.query_digest) == len(row.payload_digest) == DIGEST_BYTES:
        raise ValueError(f"digests have {DIGEST_BYTES} bytes")
    if not (0 < row.phase < 2**63 and 0 < row.round < 2**63):
        raise ValueError("phase and round count from 1")


class Rows:
    """Rows in order of arrival, each address once, at 92 bytes a row, where objects would take about 400.

    `spill`: as in `Blocks`; without it 100,000 rounds at 25 silos take 230 MB. Digests are most of that, and do not
    compress. One operation writes a record, so a repetition after an interruption stores it once.
    """

    def __init__(self, spill: bool = False) -> None:
        self._records = Blocks(_RECORD.size, spill)
        # All rounds of a phase have the same event, unless each has a range of records of its own.
        self._events: list[GaussianRelease] = []
        self._numbers: dict[GaussianRelease, int] = {}
        self._sorted = True
        self._places: dict[tuple[int, int], int] = {}
        self._newest: tuple[int, tuple[int, int]] = (0, (0, 0))
        """A count of rows and the address of the last; used only while there are as many."""

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Row]:
        return map(self.row, range(len(self)))

    def put(self, row: Row, number: int = 0) -> None:
        """Stores a row without its bytes, and replaces one at its address; `number`: of its entry, if it has one.

        Raises ValueError for a row that cannot be packed (`check_row`).
        """
        self.put_at(self.place(row.phase, row.round), row, number)

    def put_at(self, place: int | None, row: Row, number: int = 0) -> None:
        """As `put`, for the `place` that the row's address has."""
        check_row(row)
        address, event = (row.phase, row.round), self._number(row.event)
        record = _RECORD.pack(*address, number, event, row.query_digest, row.payload_digest)
        if place is not None:
            self._records[place] = record
            return
        count = len(self._records)
        if address < self._last(count):
            self._sorted = False
        self._records.append(record)
        self._newest = count + 1, address
        # Only a complete map is extended; an incomplete one is rebuilt where it is needed.
        if not self._sorted and len(self._places) == count:
            self._places[address] = count

    def is_next(self, phase: int, round: int) -> bool:
        """True if the address is after those of all rows."""
        return (phase, round) > self.last and self._sorted

    @property
    def last(self) -> tuple[int, int]:
        """Address of the row stored last; below all addresses where there is none."""
        return self._last(len(self._records))

    def place(self, phase: int, round: int) -> int | None:
        """Place of the row at this address, from 0; None if there is none."""
        count, address = len(self), (phase, round)
        if not self._sorted:
            if len(self._places) != count:
                self._places = {self._address(place): place for place in range(count)}
            return self._places.get(address)
        if address > self._last(count):
            return None
        place = bisect_left(range(count), address, key=self._address)
        return place if self._address(place) == address else None

    def row(self, place: int) -> Row:
        """The row at this place, without its bytes."""
        phase, round, _, event, query, payload = _RECORD.unpack(self._records[place])
        return Row(phase, round, query, self._events[event], payload, None)

    def number(self, place: int) -> int:
        """Number of the ledger's entry for the row at this place."""
        found: int = _RECORD.unpack(self._records[place])[2]
        return found

    def events(self) -> list[GaussianRelease]:
        """The event of each row; equal ones are the same object."""
        return [self._events[record[3]] for block in self._records for record in _RECORD.iter_unpack(block)]

    def _last(self, count: int) -> tuple[int, int]:
        """Address of the last of `count` rows; below all addresses where there is none."""
        if self._newest[0] != count:
            self._newest = count, self._address(count - 1)
        return self._newest[1]

    def _address(self, place: int) -> tuple[int, int]:
        phase, round, *_ = _RECORD.unpack(self._records[place])
        return phase, round

    def _number(self, event: GaussianRelease) -> int:
        if self._events and event is self._events[-1]:  # as in most rounds: an event's hash takes a microsecond
            return len(self._events) - 1
        if event not in self._numbers:
            self._events.append(event)
            self._numbers[event] = len(self._events) - 1
        return self._numbers[event]
