"""The batches that a shuffler has committed, on disk: each once, permuted, without the messages' senders.

No other part of a round is written: waiting messages are in memory, and silos send them again after a crash.
"""

from __future__ import annotations

import hashlib
import hmac
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fedcore.errors import InputError
from fedcore.shuffling.forms import Address

_SCHEMA = """
BEGIN;
CREATE TABLE IF NOT EXISTS runs (run TEXT PRIMARY KEY, owner BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS batches (run TEXT NOT NULL, phase INTEGER NOT NULL, round INTEGER NOT NULL,
    key TEXT NOT NULL, batch BLOB, PRIMARY KEY (run, phase, round));
COMMIT;
"""


class Committed(NamedTuple):
    """A committed batch: the key it is sealed to (hex), and its bytes (None once the run has gone on)."""

    key: str
    batch: bytes | None


class Batches:
    """The database at `path`, for one caller at a time. Methods raise sqlite3.Error if it cannot be used."""

    def __init__(self, path: Path) -> None:
        """Opens the file. Raises InputError if that fails."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._db = sqlite3.connect(path, isolation_level=None, timeout=10.0, check_same_thread=False)
            # No write-ahead file: it would still hold batches that are gone from the database.
            self._db.execute("PRAGMA journal_mode = DELETE")
            self._db.execute("PRAGMA synchronous = EXTRA")
            self._db.execute("PRAGMA secure_delete = ON")
            self._db.executescript(_SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise InputError(f"the shuffler's batches {path} cannot be opened: {error}") from None

    def owns(self, run: str, owner: str) -> bool:
        """True if the run is this owner's, or has no owner yet."""
        known = self._db.execute("SELECT owner FROM runs WHERE run = ?", (run,)).fetchone()
        return known is None or hmac.compare_digest(known[0], _digest(owner))

    def claim(self, run: str, owner: str) -> None:
        """Makes the run this owner's, for good, unless it has an owner."""
        self._db.execute("INSERT OR IGNORE INTO runs VALUES (?, ?)", (run, _digest(owner)))

    def find(self, at: Address) -> Committed | None:
        """The batch of this round; None if none was committed."""
        sql = "SELECT key, batch FROM batches WHERE run = ? AND phase = ? AND round = ?"
        found = self._db.execute(sql, (at.run, at.phase, at.round)).fetchone()
        return None if found is None else Committed(*found)

    def commit(self, at: Address, key: str, batch: bytes) -> None:
        """Writes the batch of a round for good; on disk on return. Raises sqlite3.Error if the round has one."""
        try:
            self._db.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?)", (at.run, at.phase, at.round, key, batch))
        except BaseException:
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise

    def forget(self, run: str, before: Address | None) -> None:
        """Deletes the bytes of a run's batches before a round, or of all (None); the rounds stay committed."""
        phase, round = (2**62, 1) if before is None else (before.phase, before.round)
        sql = "UPDATE batches SET batch = NULL WHERE run = ? AND (phase, round) < (?, ?) AND batch IS NOT NULL"
        self._db.execute(sql, (run, phase, round))

    def close(self) -> None:
        self._db.close()


def _digest(owner: str) -> bytes:
    return hashlib.sha256(owner.encode()).digest()
