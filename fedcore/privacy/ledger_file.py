"""The SQLite file of a durable ledger: its tables, its version, and the exclusive lock of whoever has it open."""

from __future__ import annotations

import random
import sqlite3
import time
from pathlib import Path
from typing import NamedTuple

from fedcore.errors import SiloError


class LedgerFolders(NamedTuple):
    """Where a machine keeps durable ledgers, and where their anchors."""

    ledgers: Path
    anchors: Path

    @classmethod
    def below(cls, root: Path) -> LedgerFolders:
        """Both below one root."""
        return cls(root / "ledgers", root / "anchors")

    def of(self, version: str, silo: str) -> tuple[Path, Path]:
        """Ledger and anchor of a silo's data set version."""
        return self.ledgers / version / f"{silo}.sqlite", self.anchors / version / f"{silo}.anchor"

    def found(self, silo: str | None = None) -> list[tuple[str, str]]:
        """(version, silo) of all ledgers and anchors that are there, or of one silo's, by silo and then by version."""
        pattern = "*" if silo is None else silo
        paths = [*self.ledgers.glob(f"*/{pattern}.sqlite"), *self.anchors.glob(f"*/{pattern}.anchor")]
        # Versions are random ids, and one silo's versions belong side by side.
        return sorted({(path.parent.name, path.stem) for path in paths}, key=lambda found: found[::-1])


PATIENCE = 5.0
"""Seconds to wait for a ledger that another process holds."""

VERSION = 3
"""Of the tables. 1 had no charges, 2 no chain."""
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


def connect(silo: str, path: Path) -> sqlite3.Connection:
    """The ledger's database, locked for this process; made if it is not there.

    Raises SiloError if it cannot be opened for writing, another process holds it, or it is of another version.
    """
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return _connect(silo, path)
        except _HeldError:
            if time.monotonic() > until:
                raise
        # Two that open it at the same moment each have a shared lock and want the other's to go. SQLite's own waiting
        # keeps the shared lock in this mode, and both would give up; the file was closed, which drops it.
        time.sleep(random.uniform(0.002, 0.03))


class _HeldError(SiloError):
    """Another process has the ledger."""


def _connect(silo: str, path: Path) -> sqlite3.Connection:
    db = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The lock outlives a killed owner by no time: the operating system drops it with the process.
        db = sqlite3.connect(path, isolation_level=None, timeout=0.0, check_same_thread=False)
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA secure_delete = ON")
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (tables,) = db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        if not tables:
            db.executescript(_SCHEMA)
    except (sqlite3.Error, OSError, ValueError) as error:  # SQLite may quote damaged bytes, which are not UTF-8
        if db is not None:
            db.close()
        kind = _HeldError if isinstance(error, sqlite3.OperationalError) and "locked" in str(error) else SiloError
        raise kind(silo, "ledger", f"its ledger {path} {_why(error)}") from None
    if tables and version != VERSION:
        db.close()
        raise SiloError(
            silo,
            "ledger",
            f"its ledger {path} has version {version}, this code needs {VERSION}; charges cannot be made up for it",
        )
    return db


def _why(error: Exception) -> str:
    if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
        return "is held by another process"
    if isinstance(error, ValueError | sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
        return "is not a ledger, or damaged"
    return "cannot be opened for writing"
