"""What travels: queries to silos, and releases, the only type that may leave one."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fedcore.arrays import Vector, digest, pack, unpack

BOUND = 1e12
"""Largest absolute value that a query's array may hold, and weights that are asked about; far above any model, far
below overflow."""


def is_bounded(array: np.ndarray) -> bool:
    """Whether all entries are numbers below `BOUND`."""
    return bool(np.abs(array).max(initial=0.0) < BOUND)


@dataclass(frozen=True)
class Query:
    """One round's question: plain data, never code. `arrays` are what every participant receives.

    `own`: by silo, further arrays that only this silo receives, under other names; empty where all are asked alike.
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

    def digest_of(self, silo: str) -> bytes:
        """SHA-256 (32 bytes) over run, plan, address and what the silo receives; not over who else was asked."""
        if silo not in self.own:
            return self._common_digest
        return self._digest(self.asked(silo))

    @cached_property
    def _common_digest(self) -> bytes:
        return self._digest(self.arrays)

    def _digest(self, arrays: dict[str, np.ndarray]) -> bytes:
        address = f"{self.phase}.{self.round}".encode()
        return digest(self.run.encode(), self.plan.encode(), address, pack(arrays))

    def at(self, silos: Collection[str]) -> Query:
        """The part of the question that a site with these silos needs: nobody else's own arrays."""
        if not self.own:
            return self
        return replace(self, own={name: own for name, own in self.own.items() if name in silos})

    def to_bytes(self) -> bytes:
        """Byte form for the checkpoint: a JSON line and the packed arrays, those of a silo under `name@silo`."""
        head = [self.run, self.plan, self.phase, self.round, list(self.participants)]
        owned = {f"{name}@{silo}": array for silo, own in self.own.items() for name, array in own.items()}
        return json.dumps(head).encode() + b"\n" + pack({**self.arrays, **owned})

    @classmethod
    def from_bytes(cls, data: bytes) -> Query:
        """The query that `to_bytes` wrote. Raises ValueError if the bytes are damaged."""
        head, _, rest = data.partition(b"\n")
        run, plan, phase, round, names = json.loads(head)
        arrays: dict[str, np.ndarray] = {}
        own: dict[str, dict[str, np.ndarray]] = {}
        for key, array in unpack(rest).items():
            name, _, silo = key.partition("@")
            (own.setdefault(silo, {}) if silo else arrays)[name] = array
        return cls(run, plan, phase, round, tuple(names), arrays, own)

    def __getstate__(self) -> dict[str, Any]:
        # A digest that came along with the query would be the asker's claim; the silo works out its own.
        return {key: value for key, value in self.__dict__.items() if key != "_common_digest"}


class Receipt(NamedTuple):
    """What everybody may keep of a release: its address and digests, not its content."""

    silo: str
    phase: int
    round: int
    query_digest: bytes
    payload_digest: bytes


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


@dataclass(frozen=True)
class Bundle:
    """Releases of one site to one query in the form in which they travel: one matrix (m, d), not m arrays.

    One object and one buffer: Dask walks through lists and serialises each array by itself, some 50 microseconds each.
    """

    silos: tuple[str, ...]
    phase: int
    round: int
    query_digests: tuple[bytes, ...]
    payload_digests: tuple[bytes, ...]
    payloads: np.ndarray

    @classmethod
    def of(cls, query: Query, releases: list[Release]) -> Bundle:
        """The bundle of a site's releases to `query` (there may be none)."""
        payloads = np.array([release.payload for release in releases], dtype=np.float64)
        silos = tuple([release.silo for release in releases])
        asked = tuple([release.query_digest for release in releases])
        digests = tuple([release.payload_digest for release in releases])
        return cls(silos, query.phase, query.round, asked, digests, payloads)

    def releases(self) -> list[Release]:
        """The releases again, their payloads as rows of the matrix."""
        head = (self.phase, self.round)
        each = zip(self.silos, self.query_digests, self.payload_digests, self.payloads, strict=True)
        return [Release(silo, *head, asked, digest, payload) for silo, asked, digest, payload in each]
