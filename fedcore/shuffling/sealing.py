"""Answers sealed to a run's server: HPKE (RFC 9180, base mode) with X25519, HKDF-SHA-256 and ChaCha20-Poly1305.

A carrier of a sealed answer cannot read it, and all answers of a round have one length. The `info` of the key schedule
is the digest of the question, which covers run, plan, phase, round and arrays. So a sealed answer opens only as an
answer to that question. It does not identify who sealed it: base mode has no sender.
"""

from __future__ import annotations

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from fedcore.arrays import Vector
from fedcore.randomness import derive

KEY_BYTES = 32
OVERHEAD = 32 + 16
"""Bytes that sealing adds: an encapsulated key, and a tag."""
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


class ServerKey:
    """Key pair of a run's server. Raises ValueError unless `private` has 32 bytes."""

    def __init__(self, private: bytes) -> None:
        if type(private) is not bytes or len(private) != KEY_BYTES:
            raise ValueError(f"a server's key has {KEY_BYTES} bytes")
        self.private = private
        self._key = X25519PrivateKey.from_private_bytes(private)
        self.public = self._key.public_key().public_bytes_raw()

    @classmethod
    def new(cls) -> ServerKey:
        """A new pair from the operating system's randomness."""
        return cls(X25519PrivateKey.generate().private_bytes_raw())

    @property
    def owner(self) -> str:
        """64 hex digits, by which a shuffler recognises the server that opened the run's first round.

        They cannot be computed without the private key.
        """
        return derive(self.private, "owner of the run at its shuffler").hex()

    def unsealed(self, sealed: bytes, query_digest: bytes, length: int) -> Vector:
        """The answer of `length` numbers to this question. Raises ValueError for bytes that were not sealed as such."""
        try:
            payload = _SUITE.decrypt(sealed, self._key, info=_info(query_digest))
        except (InvalidTag, ValueError):
            payload = b""
        if len(payload) != 8 * length or length < 1:
            raise ValueError("it was not sealed to this key as an answer to this question")
        return np.frombuffer(payload, dtype=np.float64)


def seal(public: bytes, query_digest: bytes, payload: Vector) -> bytes:
    """The payload (d,) sealed to the holder of the private key: 8 d + `OVERHEAD` bytes, different ones each time.

    Raises ValueError for an invalid key.
    """
    try:
        key = X25519PublicKey.from_public_bytes(public)
        return bytes(_SUITE.encrypt(payload.tobytes(), key, info=_info(query_digest)))
    except (ValueError, TypeError):  # of the wrong length, or a point of small order
        fault = "this is no public key of a server"
    raise ValueError(fault)


def sealed_length(length: int) -> int:
    """Bytes of a sealed answer of `length` numbers."""
    return 8 * length + OVERHEAD


def _info(query_digest: bytes) -> bytes:
    return b"fedcore shuffled answer\0" + query_digest
