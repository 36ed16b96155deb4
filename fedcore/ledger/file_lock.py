"""The lock that a process holds on a ledger, and the note in the lock file that names the process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import re
import stat
import time
from pathlib import Path

from fedcore.errors import SiloError
from fedcore.process.open_files import none_left

PATIENCE = 5.0
"""Seconds to wait for a ledger that another process holds."""

_HOLDER = re.compile(r"([0-9]{1,10}) ([A-Za-z0-9_.-]{0,100})\n")
_LONGEST_NOTE = 200


class HeldError(SiloError):
    """Another process holds the ledger."""


def hold(silo: str, path: Path, anchor: Path) -> int:
    """Locks the ledger and returns the descriptor of the lock file beside the anchor; closing it releases the lock.

    SQLite's own lock is not enough: it locks the file that it opened, and a copy may take the place of `path`.
    Raises HeldError if another process holds the lock for longer than `PATIENCE`, SiloError if it cannot be opened.
    """
    file, until = -1, time.monotonic() + PATIENCE
    try:
        anchor.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.open(_lock_of(anchor), os.O_RDONLY | os.O_CREAT, 0o600)
        while not (held := try_lock(file)) and time.monotonic() <= until:
            time.sleep(random.uniform(0.002, 0.03))
        if held:
            note_holder(anchor)
            return file
        refusal: SiloError = HeldError(silo, "ledger", f"its ledger {path} is held by {_holder(anchor)}")
    except OSError:
        why = ": this process has as many files open as it may (`ulimit -n`)" if none_left() else ""
        refusal = SiloError(silo, "ledger", f"its ledger's anchor {anchor} cannot be locked{why}")
    if file >= 0:
        os.close(file)
    raise refusal


def _lock_of(anchor: Path) -> Path:
    return anchor.with_suffix(".lock")


def note_holder(anchor: Path, run: str = "") -> None:
    """Writes the id of this process and `run` into the locked file, for other processes to name in their errors."""
    # Skipped where the file cannot be written or has another owner: the ledger in a read-only folder can still be read.
    with contextlib.suppress(OSError):
        file = os.open(_lock_of(anchor), os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            found = os.fstat(file)
            if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                os.ftruncate(file, 0)
                os.pwrite(file, f"{os.getpid()} {run}\n".encode(), 0)
        finally:
            os.close(file)


def _holder(anchor: Path) -> str:
    """The process that the note names, and the way out, as part of a sentence."""
    note, way_out = None, "wait for it, or end it if it hangs, is stopped, or nobody drives its run (`fedcore runs`)"
    with contextlib.suppress(OSError), open(_lock_of(anchor), "rb") as file:
        note = _HOLDER.fullmatch(file.read(_LONGEST_NOTE).decode("ascii", "replace"))
    if note is None:
        return f"another process; {way_out}"
    return f"another process ({note[1]}{', for run ' + note[2] if note[2] else ''}); {way_out}"


def try_lock(file: int) -> bool:
    """Locks an open file if no other process holds its lock; returns whether it did."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
