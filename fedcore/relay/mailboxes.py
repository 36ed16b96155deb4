"""The envelopes that wait at a relay, by receiver and in the order in which they came.

They survive the end of the relay's process, however it ends. A power failure may lose the newest ones, since nothing
waits for the disk: their senders send again what is not answered.

Numbers are kept as receivers keep theirs (`fedcore.identity.sequences`): of the newest runs of each pair of parties,
with a floor for all others. So an envelope that came once does not come again, however many runs a sender invents. The
numbers of removed parties are deleted: only a session of its own sender leaves an envelope, and receivers check anew.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from fedcore.errors import InputError
from fedcore.identity.envelope import Envelope
from fedcore.identity.sequences import MOST_RUNS
from fedcore.process.private_files import make_private
from fedcore.process.transaction import transaction

_SCHEMA = """
BEGIN;
CREATE TABLE IF NOT EXISTS waiting (place INTEGER PRIMARY KEY AUTOINCREMENT, receiver TEXT NOT NULL,
    run TEXT NOT NULL, digest BLOB NOT NULL UNIQUE, sender TEXT NOT NULL, size INTEGER NOT NULL, came REAL NOT NULL,
    envelope BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS by_receiver ON waiting (receiver, run, place);
CREATE INDEX IF NOT EXISTS by_sender ON waiting (sender, size);
CREATE INDEX IF NOT EXISTS by_time ON waiting (came);
CREATE TABLE IF NOT EXISTS newest (sender TEXT NOT NULL, receiver TEXT NOT NULL, run TEXT NOT NULL,
    sequence INTEGER NOT NULL, digest BLOB NOT NULL, PRIMARY KEY (sender, receiver, run)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_sequence ON newest (sender, receiver, sequence);
CREATE TABLE IF NOT EXISTS floors (sender TEXT NOT NULL, receiver TEXT NOT NULL, sequence INTEGER NOT NULL,
    PRIMARY KEY (sender, receiver)) WITHOUT ROWID;
COMMIT;
"""
MOST_FOUND = 1000
"""Envelopes that one look finds, at most."""


class Held(NamedTuple):
    """Envelopes of one sender that wait: their number, and their bytes."""

    envelopes: int
    size: int


class Mailboxes:
    """The database at `path`, for one caller at a time. Methods raise sqlite3.Error if it cannot be used."""

    def __init__(self, path: Path) -> None:
        """Opens the file. Raises InputError if that fails."""
        try:
            make_private(path.parent)
            self._db = sqlite3.connect(path, isolation_level=None, timeout=10.0, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.executescript(_SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise InputError(f"the relay's envelopes {path} cannot be opened: {error}") from None

    def newest(self, envelope: Envelope) -> tuple[int, bytes] | None:
        """Sequence and digest of the newest envelope of this sender to this receiver about this run; None: none yet.

        For a run that is not known, or no more: the number up to which all envelopes are old, and no digest.
        """
        heading = envelope.heading
        sql = "SELECT sequence, digest FROM newest WHERE sender = ? AND receiver = ? AND run = ?"
        found = self._db.execute(sql, (heading.sender, heading.receiver, heading.run)).fetchone()
        if found is None:
            sql = "SELECT sequence, x'' FROM floors WHERE sender = ? AND receiver = ?"
            found = self._db.execute(sql, (heading.sender, heading.receiver)).fetchone()
        return None if found is None else (int(found[0]), bytes(found[1]))

    def put(self, envelopes: Sequence[tuple[Envelope, bytes]], now: float) -> None:
        """Stores envelopes, each with its bytes, and their numbers, in one transaction."""
        with transaction(self._db):
            for envelope, data in envelopes:
                heading, digest = envelope.heading, envelope.digest
                # A sender has one call about a run outstanding, and receivers take growing numbers: older are void.
                self._db.execute(
                    "DELETE FROM waiting WHERE receiver = ? AND run = ? AND sender = ?",
                    (heading.receiver, heading.run, heading.sender),
                )
                columns = "receiver, run, digest, sender, size, came, envelope"
                self._db.execute(
                    f"INSERT INTO waiting ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (heading.receiver, heading.run, digest, heading.sender, len(data), now, data),
                )
                self._db.execute(
                    "INSERT OR REPLACE INTO newest VALUES (?, ?, ?, ?, ?)",
                    (heading.sender, heading.receiver, heading.run, heading.sequence, digest),
                )
            for pair in {(envelope.heading.sender, envelope.heading.receiver) for envelope, _ in envelopes}:
                self._drop_oldest(*pair)

    def _drop_oldest(self, *pair: str) -> None:
        beyond = "SELECT sequence FROM newest WHERE sender = ? AND receiver = ? ORDER BY sequence DESC LIMIT 1 OFFSET ?"
        found = self._db.execute(beyond, (*pair, MOST_RUNS)).fetchone()
        if found is not None:
            floor = "SELECT MAX(sequence, ?) FROM floors WHERE sender = ? AND receiver = ?"
            (least,) = self._db.execute(floor, (found[0], *pair)).fetchone() or found
            self._db.execute("INSERT OR REPLACE INTO floors VALUES (?, ?, ?)", (*pair, least))
            self._db.execute("DELETE FROM newest WHERE sender = ? AND receiver = ? AND sequence <= ?", (*pair, least))

    def held(self, sender: str) -> Held:
        """Number and bytes of the envelopes of this sender that wait, for all receivers."""
        sql = "SELECT COUNT(*), COALESCE(SUM(size), 0) FROM waiting WHERE sender = ?"
        return Held(*self._db.execute(sql, (sender,)).fetchone())

    def of(self, receiver: str, most: int, run: str | None) -> list[bytes]:
        """The oldest envelopes of this receiver, together at most `most` bytes, but at least one if one waits.

        `run`: about which they are; None: any.
        """
        about, values = ("", (receiver,)) if run is None else (" AND run = ?", (receiver, run))
        sql = f"SELECT size, envelope FROM waiting WHERE receiver = ?{about} ORDER BY place LIMIT {MOST_FOUND}"
        found: list[bytes] = []
        total = 0
        rows = self._db.execute(sql, values)
        for size, envelope in rows:
            if found and total + size > most:
                break
            found.append(bytes(envelope))
            total += size
        rows.close()
        return found

    def remove(self, receiver: str, digests: Iterable[bytes]) -> int:
        """Deletes envelopes of this receiver; returns how many of them were there."""
        sql = "DELETE FROM waiting WHERE receiver = ? AND digest = ?"
        with transaction(self._db):
            return self._db.executemany(sql, [(receiver, digest) for digest in digests]).rowcount

    def remove_before(self, came: float) -> int:
        """Deletes envelopes that came before this time; returns their number."""
        return self._db.execute("DELETE FROM waiting WHERE came < ?", (came,)).rowcount

    def remove_others(self, parties: Iterable[str]) -> int:
        """Deletes envelopes and numbers of senders and receivers that are none of these.

        Returns the number of envelopes.
        """
        known, count = set(parties), 0
        for table in ("newest", "floors", "waiting"):
            rows = self._db.execute(f"SELECT DISTINCT sender, receiver FROM {table}").fetchall()
            sql = f"DELETE FROM {table} WHERE sender = ? AND receiver = ?"
            count = sum(self._db.execute(sql, pair).rowcount for pair in rows if not known.issuperset(pair))
        return count

    def waiting(self, receiver: str) -> int:
        """Number of envelopes that wait for this receiver."""
        return int(self._db.execute("SELECT COUNT(*) FROM waiting WHERE receiver = ?", (receiver,)).fetchone()[0])

    def count(self) -> int:
        """Number of envelopes that wait."""
        return int(self._db.execute("SELECT COUNT(*) FROM waiting").fetchone()[0])

    def close(self) -> None:
        self._db.close()
