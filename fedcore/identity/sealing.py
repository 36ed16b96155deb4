"""Sealing to a public key: HPKE (RFC 9180, base mode) with X25519, HKDF-SHA-256 and ChaCha20-Poly1305.

Only the holder of the private key opens what is sealed, and only with the same `info`. Base mode has no sender: it does
not identify who sealed.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

KEY_BYTES = 32
OVERHEAD = 32 + 16
"""Bytes that sealing adds: an encapsulated key, and a tag."""
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


class SealingKey:
    """An X25519 key pair. Raises ValueError unless `private` has 32 bytes."""

    def __init__(self, private: bytes) -> None:
        if type(private) is not bytes or len(private) != KEY_BYTES:
            raise ValueError(f"a sealing key has {KEY_BYTES} bytes")
        self.private = private
        self._key = X25519PrivateKey.from_private_bytes(private)
        self.public = self._key.public_key().public_bytes_raw()

    @classmethod
    def new(cls) -> SealingKey:
        """A new pair from the operating system's randomness."""
        return cls(X25519PrivateKey.generate().private_bytes_raw())

    def opened(self, sealed: bytes, info: bytes) -> bytes:
        """The sealed bytes. Raises ValueError if they were not sealed to this key with this `info`."""
        try:
            return bytes(_SUITE.decrypt(sealed, self._key, info=info))
        except (InvalidTag, ValueError):
            pass
        raise ValueError("it was not sealed to this key, or not for this purpose")


def seal_bytes(public: bytes, info: bytes, body: bytes) -> bytes:
    """The body sealed to the holder of the private key: `OVERHEAD` bytes more, different ones each time.

    Raises ValueError for an invalid key.
    """
    try:
        return bytes(_SUITE.encrypt(body, X25519PublicKey.from_public_bytes(public), info=info))
    except (ValueError, TypeError):  # of the wrong length, or a point of small order
        pass
    raise ValueError("this is no public sealing key")
