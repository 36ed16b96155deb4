"""A party's identity: a signing key (Ed25519) and a sealing key (X25519), made where they are used and never sent.

There is no authority. Another party knows an identity by its fingerprint, which two people compare by telephone or on
paper; from then on its public keys are pinned.
"""

from __future__ import annotations

import base64
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedcore.errors import InputError
from fedcore.identity.sealing import KEY_BYTES, SealingKey
from fedcore.process.private_files import make_private, read_private

SIGNATURE_BYTES = 64
_SHOWN = 25
"""Characters of a fingerprint, of five bits each: 2^125 attempts to make keys with a given one."""
_GROUP = 5


@dataclass(frozen=True)
class PublicIdentity:
    """Public keys of a party, 32 bytes each, which are pinned together."""

    signing: bytes
    sealing: bytes

    def __post_init__(self) -> None:
        for key in (self.signing, self.sealing):
            if type(key) is not bytes or len(key) != KEY_BYTES:
                raise ValueError(f"an identity is two public keys of {KEY_BYTES} bytes")

    @property
    def digest(self) -> bytes:
        """SHA-256 over both keys (32 bytes)."""
        return hashlib.sha256(b"fedcore identity\0" + self.signing + self.sealing).digest()

    @property
    def fingerprint(self) -> str:
        """Text that people compare: five groups of five letters and digits, without 0, 1, 8 and 9."""
        text = base64.b32encode(self.digest).decode()[:_SHOWN]
        return "-".join(text[at : at + _GROUP] for at in range(0, _SHOWN, _GROUP))

    def is_shown_as(self, typed: str) -> bool:
        """True if a person typed this identity's fingerprint; case, spaces and hyphens do not count."""
        plain = "".join(typed.upper().replace("-", "").split())
        return plain == self.fingerprint.replace("-", "")

    def check_signature(self, signature: bytes, text: bytes) -> None:
        """Raises ValueError unless this identity signed the text."""
        try:
            Ed25519PublicKey.from_public_bytes(self.signing).verify(signature, text)
            return
        except (InvalidSignature, ValueError):
            pass
        raise ValueError("the signature is not that of its sender's key")


class Identity:
    """Private keys of a party, 32 bytes each. Raises ValueError for other lengths."""

    def __init__(self, signing: bytes, sealing: bytes) -> None:
        if type(signing) is not bytes or len(signing) != KEY_BYTES:
            raise ValueError(f"a signing key has {KEY_BYTES} bytes")
        self._signing, self._sealing = Ed25519PrivateKey.from_private_bytes(signing), SealingKey(sealing)
        self._private = signing + sealing
        self.public = PublicIdentity(self._signing.public_key().public_bytes_raw(), self._sealing.public)

    @classmethod
    def new(cls) -> Identity:
        """New keys from the operating system's randomness."""
        return cls(Ed25519PrivateKey.generate().private_bytes_raw(), SealingKey.new().private)

    def sign(self, text: bytes) -> bytes:
        """The signature of the text (64 bytes)."""
        return self._signing.sign(text)

    def opened(self, sealed: bytes, info: bytes) -> bytes:
        """As `SealingKey.opened`."""
        return self._sealing.opened(sealed, info)

    def store(self, path: Path) -> None:
        """Writes the keys to a new file that only this account may read. Raises InputError; a file there stays."""
        try:
            make_private(path.parent)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise InputError(f"{path}: there are keys already, and other parties may have pinned them") from None
        except OSError as error:
            raise InputError(f"{path}: its keys cannot be written ({error.strerror})") from None
        try:
            with open(file, "wb") as opened:
                opened.write(self._private)
                opened.flush()
                os.fsync(file)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise InputError(f"{path}: its keys cannot be written ({error.strerror})") from None

    @classmethod
    def stored(cls, path: Path) -> Identity:
        """The identity that `store` wrote. Raises InputError for a file that others may open, or of another form."""
        try:
            found = read_private(path, 2 * KEY_BYTES + 1)
        except OSError as error:
            raise InputError(f"{path}: its keys cannot be read ({error.strerror})") from None
        if found is None:
            raise InputError(f"{path}: keys lie in a file of this account that no other can open: chmod 600 {path}")
        if len(found) != 2 * KEY_BYTES:
            raise InputError(f"{path}: it holds {len(found)} bytes, and keys have {2 * KEY_BYTES}")
        return cls(found[:KEY_BYTES], found[KEY_BYTES:])
