"""The SQLite file of a durable ledger: its tables, its version, and SQLite's exclusive lock on it."""

from __future__ import annotations

import fcntl
import os
import random
import sqlite3
import stat
import struct
import time
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

from fedcore.errors import SiloError
from fedcore.ledger import file_lock
from fedcore.ledger.anchor import sync_folder, write_new
from fedcore.ledger.file_lock import HeldError
from fedcore.process.open_files import none_left

VERSION = 4
"""Version of tables and entries. 1 had no charges, 2 no chain, 3 no caps, orders and divergences."""
READ = (3, VERSION)
"""Versions that can be opened. 3 has the same tables, and becomes 4 with the next entry that is no release."""
_SCHEMA = f"""
BEGIN;
CREATE TABLE entries (
    sequence INTEGER PRIMARY KEY, kind TEXT NOT NULL, run TEXT NOT NULL, phase INTEGER NOT NULL, round INTEGER NOT NULL,
    query_digest BLOB NOT NULL, body TEXT NOT NULL, payload_digest BLOB NOT NULL, payload BLOB, mac BLOB NOT NULL);
CREATE UNIQUE INDEX addresses ON entries (run, phase, round) WHERE kind = 'release';
CREATE UNIQUE INDEX others ON entries (kind, run, sequence) WHERE kind != 'release';
CREATE UNIQUE INDEX approvals ON entries (run) WHERE kind = 'approval';
CREATE UNIQUE INDEX closings ON entries (run) WHERE kind = 'closing';
CREATE TABLE keys (run TEXT PRIMARY KEY, key BLOB NOT NULL);
PRAGMA user_version = {VERSION};
COMMIT;
"""


_RESERVED = 0x40000001
"""The byte that SQLite locks before it writes a rollback journal."""
_MOST_STEPS = 1_000_000
"""Bound on the steps of SQLite's machine to open a ledger: a file with cyclic pages has an endless schema."""


class _Connection(sqlite3.Connection):
    """A connection with a descriptor of its file, closed after it: closing either drops the locks of both."""

    _close_file: Callable[[], Any] | None = None

    def keep(self, file: int) -> int:
        self._close_file = weakref.finalize(self, os.close, file)
        return file

    def close(self) -> None:
        super().close()
        if self._close_file is not None:
            self._close_file()


def connect(silo: str, path: Path) -> sqlite3.Connection:
    """Opens the ledger's database, or makes it, and locks it for this process.

    Raises SiloError if the file cannot be opened for writing, is held by another process, or has another version or
    schema (tables, indexes, triggers, views).
    """
    until = time.monotonic() + file_lock.PATIENCE
    while True:
        try:
            return _connect(silo, path)
        except HeldError:
            if time.monotonic() > until:
                raise
        # Two processes that open it at once each hold a shared lock and wait for the other's. SQLite's own waiting
        # keeps the shared lock in this mode, and both would give up. Here the file was closed, which drops the lock.
        time.sleep(random.uniform(0.002, 0.03))


@cache
def _schema() -> Counter[tuple]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(_SCHEMA)
        return _schema_of(db)


def _schema_of(db: sqlite3.Connection) -> Counter[tuple]:
    return Counter(db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"))


def _connect(silo: str, path: Path) -> sqlite3.Connection:
    db, refusal = None, None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_elsewhere(path):
            raise FileExistsError(path)
        if not path.exists() or path.stat().st_size == 0:
            _make(path)
        # The operating system drops the lock of a killed process at once.
        db = sqlite3.connect(path, isolation_level=None, timeout=0.0, check_same_thread=False, factory=_Connection)
        db.set_progress_handler(lambda: 1, _MOST_STEPS)
        # No code from the file is run, and pages are checked before they are used.
        db.execute("PRAGMA trusted_schema = OFF")
        db.execute("PRAGMA cell_size_check = ON")
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        # The first read locks the file; SQLite does not look for a journal again.
        file = db.keep(os.open(path, os.O_RDWR | os.O_NOFOLLOW))
        _reserve(file, fcntl.F_WRLCK)
        (version,) = db.execute("PRAGMA user_version").fetchone()
        _reserve(file, fcntl.F_UNLCK)
        db.execute("PRAGMA cache_size = -2000")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA secure_delete = ON")
        form = [db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "encoding")]
        found = _schema_of(db)
        db.set_progress_handler(None, 0)
        if version not in READ:
            fault = f"has version {version}, this code needs {VERSION}: "
            fault += (
                "a newer fedcore wrote it" if version > VERSION else f"`fedcore budget migrate {silo}` carries it over"
            )
            refusal = SiloError(silo, "ledger", f"its ledger {path} {fault}")
        elif found != _schema() or form != ["wal", "UTF-8"]:
            refusal = SiloError(silo, "ledger-damaged", f"its ledger {path} {_schema_fault(found)}")
    except (sqlite3.Error, OSError, ValueError) as error:  # SQLite may quote damaged bytes, which are not UTF-8
        kind = HeldError if isinstance(error, sqlite3.OperationalError) and "locked" in str(error) else SiloError
        refusal = kind(silo, "ledger", f"its ledger {path} {_why(error)}")
    if db is None or refusal is not None:
        if db is not None:
            db.close()
        raise refusal or SiloError(silo, "ledger", f"its ledger {path} cannot be opened for writing")
    return db


def raise_version(db: sqlite3.Connection) -> None:
    """Raises a ledger of version 3 to this version, in the current transaction."""
    if db.execute("PRAGMA user_version").fetchone() != (VERSION,):
        db.execute(f"PRAGMA user_version = {VERSION}")


def _make(path: Path) -> None:
    """Writes a ledger without entries in one step, in write-ahead form, so that no journal ever lies beside it."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(_SCHEMA)
        data = bytearray(db.serialize())
    data[18:20] = b"\2\2"  # the versions of the format to write and to read: that of write-ahead files
    coming = path.with_name(path.name + ".new")
    write_new(coming, bytes(data))
    os.replace(coming, path)
    sync_folder(path)


def _reserve(file: int, how: int) -> None:
    """Locks or unlocks the byte that SQLite locks before it writes a journal.

    SQLite then takes a journal beside the ledger for one that has a writer, and leaves it alone. Otherwise it would
    play it back and delete the file that it names, perhaps the silo's key. This guards against a journal that appears
    after `is_elsewhere` looked.
    """
    # A lock of the open file, where the system has these: SQLite does not meet process locks of its own process.
    if hasattr(fcntl, "F_OFD_SETLK"):
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", how, os.SEEK_SET, _RESERVED, 1, 0))


def is_elsewhere(path: Path) -> bool:
    """True if the ledger or a file beside it is a link or no regular file, or if there is a journal to play back.

    Through a link SQLite would write, with this process's rights, over another file such as the anchor.
    """
    for name in (path.name + suffix for suffix in ("", "-wal", "-shm", "-journal")):
        try:
            found = os.lstat(path.with_name(name))
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or name.endswith("-journal"):
            return True
    return False


def _schema_fault(found: Counter[tuple]) -> str:
    """The fault of a schema or form, as part of a sentence. Names only expected parts, since others are untrusted."""
    missing = sorted(f"{kind} {name}" for kind, name, *_ in _schema() - found)
    fault = f"lacks {', '.join(missing)}" if missing else "has a table, index, trigger or view that is not its own"
    fault = fault if found != _schema() else "has another encoding or kind of journal than its own"
    return f"{fault}: somebody else wrote to it; restore a copy of it, then `fedcore budget reconcile`"


def _why(error: Exception) -> str:
    if isinstance(error, FileExistsError):
        return "or a file beside it is a link, or no file, or a journal; a ledger has its files for itself"
    if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
        return "is held by another process"
    if isinstance(error, ValueError | sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
        return "is not a ledger, or damaged"
    if none_left():
        return "cannot be opened: this process has as many files open as it may (`ulimit -n`)"
    return "cannot be opened for writing"
