"""Answers sealed to a run's server (`fedcore.identity.sealing`).

A carrier of a sealed answer cannot read it, and all answers of a round have one length. The `info` of the key schedule
is the digest of the question, which covers run, plan, phase, round and arrays. So a sealed answer opens only as an
answer to that question. It does not identify who sealed it.
"""

from __future__ import annotations

import numpy as np

from fedcore.arrays import Vector
from fedcore.identity.sealing import KEY_BYTES, OVERHEAD, SealingKey, seal_bytes
from fedcore.randomness import derive


class ServerKey:
    """Key pair of a run's server. Raises ValueError unless `private` has 32 bytes."""

    def __init__(self, private: bytes) -> None:
        if type(private) is not bytes or len(private) != KEY_BYTES:
            raise ValueError(f"a server's key has {KEY_BYTES} bytes")
        self.private = private
        self._key = SealingKey(private)
        self.public = self._key.public

    @classmethod
    def new(cls) -> ServerKey:
        """A new pair from the operating system's randomness."""
        return cls(SealingKey.new().private)

    @property
    def owner(self) -> str:
        """64 hex digits, by which a shuffler recognises the server that opened the run's first round.

        They cannot be computed without the private key.
        """
        return derive(self.private, "owner of the run at its shuffler").hex()

    def unsealed(self, sealed: bytes, query_digest: bytes, length: int) -> Vector:
        """The answer of `length` numbers to this question. Raises ValueError for bytes that were not sealed as such."""
        try:
            payload = self._key.opened(sealed, _info(query_digest))
        except ValueError:
            payload = b""
        if len(payload) != 8 * length or length < 1:
            raise ValueError("it was not sealed to this key as an answer to this question")
        return np.frombuffer(payload, dtype=np.float64)


def seal(public: bytes, query_digest: bytes, payload: Vector) -> bytes:
    """The payload (d,) sealed to the holder of the private key: 8 d + `OVERHEAD` bytes, different ones each time.

    Raises ValueError for an invalid key.
    """
    try:
        return seal_bytes(public, _info(query_digest), payload.tobytes())
    except ValueError:
        pass
    raise ValueError("this is no public key of a server")


def sealed_length(length: int) -> int:
    """Bytes of a sealed answer of `length` numbers."""
    return 8 * length + OVERHEAD


def _info(query_digest: bytes) -> bytes:
    return b"fedcore shuffled answer\0" + query_digest
