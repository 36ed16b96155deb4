"""Gaussian noise keyed by what it protects: one noise vector never masks two different sums.

The key of a draw is a MAC under the run key of the answer's address and number, the query digest, and the exact sum
before noise: BLAKE2b in its keyed mode (RFC 7693), which takes a third of the time of HMAC-SHA-256. The same question
about the same records repeats the same bytes; a sum that differs in its last bit gets independent noise.
This sampler is NumPy's, in double precision, for simulated silos: its image is not the whole line, and whoever holds
the seed can take the noise away. Guarded silos use `fedcore.mechanisms.grid` instead.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Any

import numpy as np

from fedcore.arrays import Vector

_TWO_WORDS = struct.Struct("<2Q")


class KeyedGaussian:
    """Standard normals from Philox in counter mode, re-keyed for every draw."""

    def __init__(self) -> None:
        self._bits = np.random.Philox(key=0)
        self._generator = np.random.Generator(self._bits)
        # The state of a Philox that has drawn nothing, as plain integers: NumPy takes it up faster than from arrays.
        fresh = self._bits.state
        self._address: dict[str, tuple[int, ...]] = {"counter": (0, 0, 0, 0), "key": (0, 0)}
        self._fresh: Any = {**fresh, "state": self._address, "buffer": tuple(int(word) for word in fresh["buffer"])}

    def draw(self, run_key: bytes, context: bytes, total: Vector) -> Vector:
        """Independent N(0, 1) coordinates in the shape of `total`, keyed by run key, context and its bits."""
        key = blake2b(context + total.tobytes(), key=run_key, digest_size=16).digest()
        self._address["key"] = _TWO_WORDS.unpack(key)
        self._bits.state = self._fresh
        return self._generator.standard_normal(total.shape)
