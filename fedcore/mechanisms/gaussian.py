"""Gaussian noise in double precision, keyed by the sum, or for simulated silos by the address.

Its image is not the whole line. It gives no protection against an observer of the last bits of a sum. Guarded silos use
`fedcore.mechanisms.grid` instead. Normals are those of `fedcore.draws`, the same on every machine.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol

from fedcore.arrays import Matrix, Vector
from fedcore.draws.normal import normals
from fedcore.draws.philox import Philox

MOST_AT_ONCE = 1 << 16
"""Numbers of one pass of noise over several answers, at most: half a megabyte."""


def round_address(phase: int, round: int) -> bytes:
    """The address of a round, in the form of noise and sample keys."""
    return struct.pack("<QQ", phase, round)


def numbered(address: bytes, ask: int) -> bytes:
    """The address of an answer within a round. `ask`: its number, from 1."""
    return address + ask.to_bytes(8, "little")


class Noise(Protocol):
    """Standard normals that mask one sum."""

    def draw(self, run_key: bytes, context: bytes, total: Vector) -> Vector:
        """Independent N(0, 1) coordinates in the shape of `total`."""
        ...


class KeyedGaussian:
    """Normals keyed by run key, context and exact sum: one noise vector never masks two sums.

    The key is a MAC by BLAKE2b in its keyed mode (RFC 7693), which takes a third of the time of HMAC-SHA-256. The same
    question about the same records repeats the same bytes; a sum that differs in its last bit gets independent noise.
    """

    def __init__(self) -> None:
        self._philox = Philox()

    def draw(self, run_key: bytes, context: bytes, total: Vector) -> Vector:
        """Independent N(0, 1) coordinates in the shape of `total`, keyed by run key, context and its bits."""
        self._philox.start(blake2b(context + total.tobytes(), key=run_key, digest_size=16).digest())
        return normals(self._philox.words(total.size).reshape(total.shape))


class SeededGaussian:
    """Normals of simulated silos, keyed by run key and context: one noise per address, for every sum."""

    def __init__(self) -> None:
        self._philox = Philox()

    def draw(self, run_key: bytes, context: bytes, total: Vector) -> Vector:
        """Independent N(0, 1) coordinates in the shape of `total`, keyed by run key and context."""
        return self.rows([(run_key, context)], total.size)[0].reshape(total.shape)

    def rows(self, keyed: Sequence[tuple[bytes, bytes]], size: int) -> Vector:
        """Normals (draws, size) of each run key and context, in one pass: each row equals that of `draw`."""
        keys = [blake2b(context, key=run_key, digest_size=16).digest() for run_key, context in keyed]
        return normals(self._philox.first(keys, size))


class NoiseAhead:
    """The noise of simulated silos in a round, drawn for several of its answers in one pass.

    `keys`: of the silos' runs. `address`: of the round. `answers`: of a silo. Every row is that of `SeededGaussian`.
    """

    def __init__(self, mechanism: SeededGaussian, keys: Sequence[bytes], address: bytes, answers: int) -> None:
        self._mechanism, self._keys, self._address, self._answers = mechanism, keys, address, answers
        self._ahead: dict[tuple[int, int], Matrix] = {}

    def add(self, ask: int, deviation: Matrix, total: Matrix) -> None:
        """Adds the noise of an answer to `total` (silos, length), times each silo's `deviation` (silos, 1)."""
        silos, length = total.shape
        if self._answers > 1 and silos * length <= MOST_AT_ONCE:
            noise = self.rows(ask, length)
            noise *= deviation
            total += noise
            return
        context, at_once = numbered(self._address, ask), max(1, MOST_AT_ONCE // length)
        for start in range(0, silos, at_once):
            rows = slice(start, start + at_once)
            noise = self._mechanism.rows([(key, context) for key in self._keys[rows]], length)
            noise *= deviation[rows]
            total[rows] += noise

    def rows(self, ask: int, length: int) -> Matrix:
        """Normals (silos, length) of an answer, in an array that the caller owns. `ask`: its number, from 1."""
        if (found := self._ahead.pop((ask, length), None)) is not None:
            return found
        at_once = max(1, MOST_AT_ONCE // (len(self._keys) * length))
        asks = range(ask, max(ask, min(self._answers, ask - 1 + at_once)) + 1)
        keyed = [(key, context) for context in (numbered(self._address, each) for each in asks) for key in self._keys]
        drawn = self._mechanism.rows(keyed, length).reshape(-1, len(self._keys), length)
        self._ahead.update(zip(((each, length) for each in asks), drawn, strict=True))
        return self._ahead.pop((ask, length))

    def draw(self, run_key: bytes, context: bytes, total: Vector) -> Vector:
        """As `SeededGaussian.draw`, of one silo in its order of answers."""
        return self.rows(int.from_bytes(context[-8:], "little"), total.size)[0].reshape(total.shape)
