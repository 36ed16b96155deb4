"""The anchor of a durable ledger: its last entry, the sum of its charges, and the entries that made that sum.

The anchor lies beside the ledger's key in a folder of its own, best on another disk. It is written after each commit
and before anything is sent. A ledger behind its anchor has lost its tail or is a restored copy. A ledger may be ahead
of its anchor by entries that were committed when the process died; none of their bytes were sent.
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
from typing import NamedTuple, get_args

from fedcore.accounting.filters import Cap, Charge, Rule
from fedcore.bounded_file import read_within
from fedcore.errors import SiloError
from fedcore.limits import LARGEST_KEY

_SLOT = struct.Struct("<Q32sdddQ32sddddB32s")
_EARLIER = struct.Struct("<Q32sdddQ32s32s"), struct.Struct("<Q32sddd32s")
"""Slots of earlier versions: without an order, and without runs and trail as well."""
_RULES = get_args(Rule)
_STRIDE = 512
_KEY_BYTES = 32
GENESIS = bytes(32)
"""The MAC that the first entry of a chain continues."""


class Totals(NamedTuple):
    """Sums over the charges in force. `rho`: sum of divergences at the account's order; 0 while it has none."""

    mu_squared: float
    epsilon: float
    delta: float
    rho: float = 0.0

    @classmethod
    def of(cls, charges: Iterable[Charge], order: float | None = None) -> Totals:
        """Correctly rounded sums: equal charges give equal bits on every machine.

        Except `rho` of a charge that does not store its divergence at this order: the integral depends on the machine.
        """
        every = list(charges)
        return cls(
            math.fsum(charge.mu_squared for charge in every),
            math.fsum(charge.epsilon for charge in every),
            math.fsum(charge.delta for charge in every),
            0.0 if order is None else math.fsum(charge.rho(order) for charge in every),
        )

    @property
    def charge(self) -> Charge:
        """The sums as one charge, without a divergence: a bound on that follows from mu^2."""
        return Charge(self.mu_squared, self.epsilon, self.delta)


class Mark(NamedTuple):
    """An anchor's content: number and MAC of the last entry, totals at that moment, runs approved, and the trail.

    `trail`: `LedgerState.trail`, a digest of the entries other than releases; None in an anchor of an earlier version,
    until the next entry. Sum and number of these entries do not identify them. One could be passed off as a release.
    Of two entries made under one number, one of them never committed, either could be shown.

    `order`, `claimed`: of the account's caps (`Caps`). For a registered silo only the register has `claimed`.
    """

    sequence: int
    head: bytes
    totals: Totals
    runs: int = 0
    trail: bytes | None = None
    order: float | None = None
    claimed: Cap | None = None


class Anchor:
    """The anchor file `path` (two slots, written in turn, each with a MAC) and the key beside it (suffix .key).

    `mark` is None if there is no anchor, or neither slot is whole. Raises OSError if the folder cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.key_path = path.with_suffix(".key")
        self._file: int | None = None
        found = read_within(self.key_path, LARGEST_KEY) if self.key_path.exists() else b""
        # Earlier versions could leave a shorter key, cut by a full disk or a kill; no entry was chained with it.
        self.key = found if len(found) == _KEY_BYTES else None
        self.mark = None if self.key is None else self._read(self.key)

    @classmethod
    def read(cls, silo: str, path: Path) -> Anchor:
        """The anchor at `path`. Raises SiloError if it cannot be read."""
        try:
            return cls(path)
        except OSError:
            pass
        raise SiloError(silo, "ledger", f"its ledger's anchor {path} cannot be read")

    @property
    def known_key(self) -> bytes:
        """The ledger's key. Raises ValueError if it is gone."""
        if self.key is None:
            raise ValueError(f"the key {self.key_path} is gone")
        return self.key

    def make(self) -> bool:
        """Writes a new random key and a mark of no entries to disk, or completes those that a kill left half made.

        The key gets its name last, so a key in place without an anchor has lost its anchor. Returns False, and changes
        nothing, if there is an anchor that has lost its key.
        """
        genesis = Mark(0, GENESIS, Totals(0.0, 0.0, 0.0), 0, GENESIS)
        coming = self.key_path.with_suffix(".key.new")
        if self.path.exists():
            key = read_within(coming, LARGEST_KEY) if coming.exists() else b""
            if len(key) != _KEY_BYTES or self._read(key) != genesis:
                return False
            self.mark = genesis
        else:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            key = secrets.token_bytes(_KEY_BYTES)
            write_new(coming, key)
            sync_folder(coming)
            self._replace(key, genesis)
        os.replace(coming, self.key_path)
        sync_folder(self.key_path)
        self.key = key
        return True

    def write(self, mark: Mark, durable: bool = False) -> None:
        """Writes `mark` to the older slot. `durable`: waits for the disk; else a power cut may undo the write."""
        if self.key is None:
            raise OSError(f"the key {self.key_path} is not there")
        if self._file is None:
            self._file = os.open(self.path, os.O_RDWR)
            self._closing = weakref.finalize(self, os.close, self._file)
        slot = self._slot(self.key, mark)
        _whole(os.pwrite(self._file, slot, _STRIDE * (mark.sequence % 2)), slot)
        if durable:
            os.fsync(self._file)
        self.mark = mark

    def replace(self, mark: Mark) -> None:
        """Replaces the file, in one step, by an anchor that holds only `mark`."""
        if self.key is None:
            raise OSError(f"the key {self.key_path} is not there")
        self.close()
        self._replace(self.key, mark)

    def close(self) -> None:
        if self._file is not None:
            self._closing()
            self._file = None

    def _replace(self, key: bytes, mark: Mark) -> None:
        coming = self.path.with_suffix(".anchor.new")
        write_new(coming, bytes(_STRIDE * (mark.sequence % 2)) + self._slot(key, mark))
        os.replace(coming, self.path)
        sync_folder(self.path)
        self.mark = mark

    def _slot(self, key: bytes, mark: Mark) -> bytes:
        trail = mark.trail or GENESIS
        cap, sums = mark.claimed, mark.totals
        claimed = (0.0, 0.0, 0) if cap is None else (cap.epsilon, cap.delta, _RULES.index(cap.rule))
        caps = (mark.order or 0.0, sums.rho, *claimed)
        plain = _SLOT.pack(mark.sequence, mark.head, *sums[:3], mark.runs, trail, *caps, bytes(32))[:-32]
        return plain + hmac.digest(key, b"anchor" + plain, "sha256")

    def _read(self, key: bytes) -> Mark | None:
        if not self.path.exists():
            return None
        data, found = read_within(self.path, LARGEST_KEY), []
        for start, form in ((start, form) for start in (0, _STRIDE) for form in (_SLOT, *_EARLIER)):
            slot = data[start : start + form.size]
            if len(slot) < form.size:
                continue
            sequence, head, mu_squared, epsilon, delta, *known, mac = form.unpack(slot)
            if hmac.compare_digest(mac, hmac.digest(key, b"anchor" + slot[:-32], "sha256")):
                runs, trail = known[:2] or (0, None)
                order, rho, at_most, at, rule = known[2:] or (0.0, 0.0, 0.0, 0.0, 0)
                totals = Totals(mu_squared, epsilon, delta, rho)
                claimed = Cap(at_most, at, _RULES[int(rule)]) if at_most else None
                found.append(Mark(sequence, head, totals, runs, trail, order or None, claimed))
        return max(found, default=None, key=lambda mark: mark.sequence)


def _whole(written: int, data: bytes) -> None:
    """Raises OSError unless all of `data` was written: a write at the end of a quota may be short without an error."""
    if written < len(data):
        raise OSError(errno.ENOSPC, "only a part was written")


def write_new(path: Path, data: bytes) -> None:
    """Writes a new file and waits for the disk; replaces one that a kill left half made. Raises OSError."""
    path.unlink(missing_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        _whole(os.write(file, data), data)
        os.fsync(file)
    finally:
        os.close(file)


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file by way of a partial one beside it, and replaces an older one. Raises OSError; it then stays."""
    part = path.with_name(f"{path.name}.part")
    write_new(part, data)
    os.replace(part, path)
    sync_folder(path)


def sync_folder(path: Path) -> None:
    """Waits until the name of `path` is on disk. Raises OSError."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
