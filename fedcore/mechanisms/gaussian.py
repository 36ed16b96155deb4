"""Gaussian noise in double precision, keyed by the sum, or for simulated silos by the address.

Its image is not the whole line. It gives no protection against an observer of the last bits of a sum. Guarded silos use
`fedcore.mechanisms.grid` instead. Normals are those of `fedcore.draws`, the same on every machine.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from itertools import islice
from typing import ClassVar, Protocol

from fedcore.arrays import Vector
from fedcore.draws.normal import normals
from fedcore.draws.philox import Philox

MOST_AT_ONCE = 1 << 16
"""Numbers of one pass over several draws, at most: half a megabyte."""


def round_address(phase: int, round: int) -> bytes:
    """The address of a round, in the form of noise and sample keys."""
    return struct.pack("<QQ", phase, round)


def numbered(address: bytes, ask: int) -> bytes:
    """The address of an answer within a round. `ask`: its number, from 1."""
    return address + ask.to_bytes(8, "little")


class Noise(Protocol):
    """Standard normals that mask one sum.

    `in_passes`: True if they follow from run key and context alone. Draws of several silos can then be made in one pass
    (`RoundNoise`).
    """

    in_passes: ClassVar[bool]

    def draw(self, run_key: bytes, context: bytes, total: Vector) -> Vector:
        """Independent N(0, 1) coordinates in the shape of `total`."""
        ...


class KeyedGaussian:
    """Normals keyed by run key, context and exact sum: one noise vector never masks two sums.

    The key is a MAC by BLAKE2b in its keyed mode (RFC 7693), which takes a third of the time of HMAC-SHA-256. The same
    question about the same records repeats the same bytes; a sum that differs in its last bit gets independent noise.
    """

    in_passes: ClassVar[bool] = False

    def __init__(self) -> None:
        self._philox = Philox()

    def draw(self, run_key: bytes, context: bytes, total: Vector) -> Vector:
        """Independent N(0, 1) coordinates in the shape of `total`, keyed by run key, context and its bits."""
        self._philox.start(blake2b(context + total.tobytes(), key=run_key, digest_size=16).digest())
        return normals(self._philox.words(total.size).reshape(total.shape))


class SeededGaussian:
    """Normals of simulated silos, keyed by run key and context: one noise per address, for every sum."""

    in_passes: ClassVar[bool] = True

    def __init__(self) -> None:
        self._philox = Philox()

    def draw(self, run_key: bytes, context: bytes, total: Vector) -> Vector:
        """Independent N(0, 1) coordinates in the shape of `total`, keyed by run key and context."""
        return self.rows([(run_key, context)], total.size)[0].reshape(total.shape)

    def rows(self, keyed: Sequence[tuple[bytes, bytes]], size: int) -> Vector:
        """Normals (draws, size) of each run key and context, in one pass: each row equals that of `draw`."""
        keys = [blake2b(context, key=run_key, digest_size=16).digest() for run_key, context in keyed]
        return normals(self._philox.first(keys, size))


class RoundNoise:
    """The noise of one round of several simulated silos, computed in passes over silos.

    A pass runs at the first draw that needs it. `run_keys`: of the silos, in the order in which they answer. `address`:
    of the round (`round_address`). `answers`: of each silo. `size`: numbers of an answer. Every row equals that of
    `SeededGaussian.draw`.
    """

    in_passes: ClassVar[bool] = True

    def __init__(
        self, mechanism: SeededGaussian, run_keys: Sequence[bytes], address: bytes, answers: int, size: int
    ) -> None:
        self._mechanism, self._size = mechanism, size
        self._contexts = [numbered(address, ask) for ask in range(1, answers + 1)]
        self._run_keys = frozenset(run_keys)
        self._waiting = dict.fromkeys(run_keys)
        self._silos_at_once = MOST_AT_ONCE // max(1, size * answers)
        self._ahead: dict[tuple[bytes, bytes], Vector] = {}

    def of(self, run_key: bytes, own: Noise) -> Noise:
        """This object for a silo of the round, the silo's `own` noise for another."""
        return self if run_key in self._run_keys and own.in_passes else own

    def draw(self, run_key: bytes, context: bytes, total: Vector) -> Vector:
        """As `SeededGaussian.draw`, in an array that the caller owns."""
        found = self._ahead.pop((run_key, context), None)
        if found is None and run_key in self._waiting and self._silos_at_once > 0:
            self._draw_from(run_key)
            found = self._ahead.pop((run_key, context), None)
        if found is None or found.shape != total.shape:
            return self._mechanism.draw(run_key, context, total)
        return found

    def _draw_from(self, run_key: bytes) -> None:
        """Draws for this silo and for waiting ones, as many as fit in a pass."""
        del self._waiting[run_key]
        others = list(islice(self._waiting, self._silos_at_once - 1))
        for key in others:
            del self._waiting[key]
        keyed = [(key, context) for key in (run_key, *others) for context in self._contexts]
        self._ahead.update(zip(keyed, self._mechanism.rows(keyed, self._size), strict=True))
