"""The anchor of a durable ledger: how many entries it had, the end of its chain and the sum of its charges.

It lies beside the ledger's key in a folder of its own, best on another disk, and is written after each commit and
before anything is sent. A ledger that is behind its anchor has lost its tail or is a restored copy. A ledger may be
ahead of it, by what was committed when the process died: nothing of that had been sent.
"""

from __future__ import annotations

import errno
import hmac
import math
import os
import secrets
import struct
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fedcore.privacy.filters import Charge

_SLOT = struct.Struct("<Q32sddd32s")
_STRIDE = 512
_KEY_BYTES = 32
GENESIS = bytes(32)
"""What the first entry of a chain continues."""


class Totals(NamedTuple):
    """Sums over the charges in force."""

    mu_squared: float
    epsilon: float
    delta: float

    @classmethod
    def of(cls, charges: Iterable[Charge]) -> Totals:
        """Correctly rounded sums, so that the same charges always give the same bits."""
        kept = list(charges)
        return cls(
            math.fsum(charge.mu_squared for charge in kept),
            math.fsum(charge.epsilon for charge in kept),
            math.fsum(charge.delta for charge in kept),
        )


class Mark(NamedTuple):
    """What an anchor says: number and MAC of the last entry, and totals at that moment."""

    sequence: int
    head: bytes
    totals: Totals


class Anchor:
    """The file at `path` (two slots, written in turn, each with a MAC) and the key in `path` with the suffix .key.

    `mark` is None if there is no anchor, or none of its slots is whole. Raises OSError if the folder cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.key_path = path.with_suffix(".key")
        self._file: int | None = None
        found = self.key_path.read_bytes() if self.key_path.exists() else b""
        # A shorter one was cut while it was made, by a full disk or a kill, and nothing was chained with it.
        self.key = found if len(found) == _KEY_BYTES else None
        self.mark = None if self.key is None else self._read(self.key)

    def make(self) -> bytes:
        """A new random key, on disk before it is used; returns it.

        Raises FileExistsError if there is an anchor already: what it says would be lost without its key.
        """
        if self.path.exists():
            raise FileExistsError(f"the anchor {self.path} has lost its key")
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = secrets.token_bytes(_KEY_BYTES)
        file = os.open(self.key_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            _whole(os.write(file, key), key)
            os.fsync(file)
        finally:
            os.close(file)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self.key = key
        return key

    def write(self, mark: Mark, durable: bool = False) -> None:
        """Puts `mark` in the older slot. `durable`: waits for the disk; else a power cut may leave the mark before."""
        if self.key is None:
            raise OSError(f"the key {self.key_path} is not there")
        if self._file is None:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            self._closing = weakref.finalize(self, os.close, self._file)
        slot = self._slot(self.key, mark)
        _whole(os.pwrite(self._file, slot, _STRIDE * (mark.sequence % 2)), slot)
        if durable:
            os.fsync(self._file)
        self.mark = mark

    def forget(self) -> None:
        """Takes the anchor away, for one whose ledger starts anew behind it; the key stays."""
        self.close()
        self.path.unlink(missing_ok=True)
        self.mark = None

    def close(self) -> None:
        if self._file is not None:
            self._closing()
            self._file = None

    def _slot(self, key: bytes, mark: Mark) -> bytes:
        plain = _SLOT.pack(mark.sequence, mark.head, *mark.totals, bytes(32))[:-32]
        return plain + hmac.digest(key, b"anchor" + plain, "sha256")

    def _read(self, key: bytes) -> Mark | None:
        if not self.path.exists():
            return None
        data, found = self.path.read_bytes(), []
        for start in (0, _STRIDE):
            slot = data[start : start + _SLOT.size]
            if len(slot) < _SLOT.size:
                continue
            sequence, head, *totals, mac = _SLOT.unpack(slot)
            if hmac.compare_digest(mac, hmac.digest(key, b"anchor" + slot[:-32], "sha256")):
                found.append(Mark(sequence, head, Totals(*totals)))
        return max(found, default=None)


def _whole(written: int, data: bytes) -> None:
    """Raises OSError unless all of `data` was written: at the end of a quota a part may be, without an error."""
    if written < len(data):
        raise OSError(errno.ENOSPC, "only a part was written")
