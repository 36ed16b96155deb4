"""Raw 64-bit words of Philox4x64-10 (Salmon et al. 2011) in counter mode, by a key of 16 bytes.

The key is two little-endian words. The counter of four words starts at 1 for every key, so a word is a function of key
and place alone. NumPy computes the words (`random_raw`): the algorithm fixes them, and tests compute them otherwise.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_TWO_WORDS = struct.Struct("<2Q")


class Philox:
    """Successive words under one key; starting a key takes a microsecond. Not for two threads at once."""

    def __init__(self) -> None:
        self._bits = np.random.Philox(key=0)
        # The state of a Philox that has drawn nothing, as plain integers: NumPy takes it up faster than from arrays.
        fresh = self._bits.state
        self._address: dict[str, tuple[int, ...]] = {"counter": (0, 0, 0, 0), "key": (0, 0)}
        self._fresh: Any = {**fresh, "state": self._address, "buffer": tuple(int(word) for word in fresh["buffer"])}

    def start(self, key: bytes) -> None:
        """Goes to the first word of a key (16 bytes)."""
        self._address["key"] = _TWO_WORDS.unpack(key)
        self._bits.state = self._fresh

    def words(self, n: int) -> Words:
        """The next n words (n,)."""
        return np.asarray(self._bits.random_raw(n))

    def first(self, keys: Sequence[bytes], n: int) -> Words:
        """The first n words of each key (keys, n), as `start` and `words` give them."""
        found = np.empty((len(keys), n), dtype=np.uint64)
        for row, key in zip(found, keys, strict=True):
            self.start(key)
            row[:] = self._bits.random_raw(n)
        return found
