"""Sequence numbers of envelopes: a receiver takes each number of a sender and run once, and only growing ones.

A number is the microseconds since 1970, or the last number and one if that is larger. So it needs no counter on disk at
the sender, and one that was taken long ago is never taken again. An envelope counts as taken when it is answered. If
the receiver dies before, the carrier hands out the same envelope again; it alone is taken a second time.

A sender names runs as it likes, so a receiver keeps the numbers of its `MOST_RUNS` newest runs, and a floor. Each
number that was ever taken is refused. It is at most the newest of its run, whose row is there or was dropped. With the
row, only larger numbers are taken. A row is dropped in the transaction that raises the floor to its number or above,
and floors never fall. Without the row, only numbers above the floor are taken.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from fedcore.errors import InputError
from fedcore.identity.envelope import Heading
from fedcore.process.private_files import make_private
from fedcore.process.transaction import transaction

MOST_AHEAD = timedelta(days=1)
"""Bound on a number's lead over the receiver's clock: a sender with a wrong clock blocks itself for no longer."""
MOST_RUNS = 2**12
"""Runs of a sender whose newest numbers are kept one by one."""
_MICROSECONDS = 10**6
_SCHEMA = """
BEGIN;
CREATE TABLE IF NOT EXISTS newest (sender TEXT NOT NULL, run TEXT NOT NULL, sequence INTEGER NOT NULL,
    digest BLOB NOT NULL, answered INTEGER NOT NULL, PRIMARY KEY (sender, run)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_sequence ON newest (sender, sequence);
CREATE TABLE IF NOT EXISTS floors (sender TEXT PRIMARY KEY, sequence INTEGER NOT NULL) WITHOUT ROWID;
COMMIT;
"""


class Numbers:
    """A sender's numbers to one receiver about one run. `least`: of the first, so that a clock set back is no loss."""

    def __init__(self, clock: Callable[[], float], least: int = 1) -> None:
        self._clock, self._last = clock, least - 1

    def next(self) -> int:
        """The next number, from `clock` (seconds since 1970)."""
        self._last = max(self._last + 1, int(self._clock() * _MICROSECONDS))
        return self._last


class Sequences:
    """The newest number of each sender and run that this receiver has taken, in the database at `path`.

    For one caller at a time. Raises InputError if the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            make_private(path.parent)
            self._db = sqlite3.connect(path, isolation_level=None, timeout=10.0, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(_SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise InputError(f"{path}: the numbers of received envelopes cannot be kept ({error})") from None

    def take(self, heading: Heading, digest: bytes, now: datetime) -> None:
        """Takes the number of an envelope with this digest, on disk on return.

        Called before anything is done that the envelope asks for. Raises ValueError for a number that is not larger
        than the newest, or from the future; InputError if the disk fails.
        """
        if heading.sequence > int((now + MOST_AHEAD).timestamp() * _MICROSECONDS):
            raise ValueError(
                f"an envelope of {heading.sender} is from more than a day ahead of this clock; set the clocks right"
            )
        try:
            with transaction(self._db):
                taken = self._taken(heading, digest)
        except sqlite3.Error as error:
            raise self._lost(error) from None
        if not taken:
            about = f" about run {heading.run}" if heading.run else ""
            raise ValueError(f"an envelope of {heading.sender}{about} came before, or before one that was sent earlier")

    def answered(self, heading: Heading) -> None:
        """Notes that the envelope's answer is on its way: it is never taken again. Raises InputError."""
        sql = "UPDATE newest SET answered = 1 WHERE sender = ? AND run = ? AND sequence = ?"
        try:
            self._db.execute(sql, (heading.sender, heading.run, heading.sequence))
        except sqlite3.Error as error:
            raise self._lost(error) from None

    def _taken(self, heading: Heading, digest: bytes) -> bool:
        """Takes a number, if it may be taken; False otherwise."""
        sender, run, sequence = heading.sender, heading.run, heading.sequence
        known = "SELECT sequence, digest, answered FROM newest WHERE sender = ? AND run = ?"
        found = self._db.execute(known, (sender, run)).fetchone()
        if found is not None:
            newest, its_digest, answered = found
            again = sequence == newest and digest == bytes(its_digest) and not answered
            if sequence <= newest:
                return again
            update = "UPDATE newest SET sequence = ?, digest = ?, answered = 0 WHERE sender = ? AND run = ?"
            self._db.execute(update, (sequence, digest, sender, run))
            return True
        if sequence <= self._floor(sender):
            return False
        self._db.execute("INSERT INTO newest VALUES (?, ?, ?, ?, 0)", (sender, run, sequence, digest))
        self._drop_oldest(sender)
        return True

    def _floor(self, sender: str) -> int:
        found = self._db.execute("SELECT sequence FROM floors WHERE sender = ?", (sender,)).fetchone()
        return 0 if found is None else int(found[0])

    def _drop_oldest(self, sender: str) -> None:
        """Drops the rows beyond `MOST_RUNS` with the smallest numbers, and raises the floor to the largest of them."""
        beyond = "SELECT sequence FROM newest WHERE sender = ? ORDER BY sequence DESC LIMIT 1 OFFSET ?"
        found = self._db.execute(beyond, (sender, MOST_RUNS)).fetchone()
        if found is None:
            return
        floor = max(int(found[0]), self._floor(sender))
        self._db.execute("INSERT OR REPLACE INTO floors VALUES (?, ?)", (sender, floor))
        self._db.execute("DELETE FROM newest WHERE sender = ? AND sequence <= ?", (sender, floor))

    def _lost(self, error: sqlite3.Error) -> InputError:
        return InputError(f"{self.path}: the numbers of received envelopes cannot be kept ({error})")

    def close(self) -> None:
        self._db.close()
