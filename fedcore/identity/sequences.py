"""Sequence numbers of envelopes: a receiver takes each number of a sender and run once, and only growing ones.

A number is the microseconds since 1970, or the last number and one if that is larger. So it needs no counter on disk at
the sender, and one that was taken long ago is never taken again. An envelope counts as taken when it is answered. If
the receiver dies before, the carrier hands out the same envelope again; it alone is taken a second time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from fedcore.errors import InputError
from fedcore.identity.envelope import Heading
from fedcore.process.private_files import make_private

MOST_AHEAD = timedelta(days=1)
"""Bound on a number's lead over the receiver's clock: a sender with a wrong clock blocks itself for no longer."""
_MICROSECONDS = 10**6


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
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS newest (sender TEXT NOT NULL, run TEXT NOT NULL, "
                "sequence INTEGER NOT NULL, digest BLOB NOT NULL, answered INTEGER NOT NULL, "
                "PRIMARY KEY (sender, run)) WITHOUT ROWID"
            )
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
        values = (heading.sender, heading.run, heading.sequence, digest)
        taken = self._changed(
            "INSERT INTO newest VALUES (?, ?, ?, ?, 0) ON CONFLICT (sender, run) DO UPDATE "
            "SET sequence = excluded.sequence, digest = excluded.digest, answered = 0 "
            "WHERE excluded.sequence > newest.sequence OR (excluded.sequence = newest.sequence "
            "AND excluded.digest = newest.digest AND newest.answered = 0)",
            *values,
        )
        if taken != 1:
            about = f" about run {heading.run}" if heading.run else ""
            raise ValueError(f"an envelope of {heading.sender}{about} came before, or before one that was sent earlier")

    def answered(self, heading: Heading) -> None:
        """Notes that the envelope's answer is on its way: it is never taken again. Raises InputError."""
        sql = "UPDATE newest SET answered = 1 WHERE sender = ? AND run = ? AND sequence = ?"
        self._changed(sql, heading.sender, heading.run, heading.sequence)

    def _changed(self, sql: str, *values: str | int | bytes) -> int:
        try:
            return self._db.execute(sql, values).rowcount
        except sqlite3.Error as error:
            raise InputError(f"{self.path}: the numbers of received envelopes cannot be kept ({error})") from None

    def close(self) -> None:
        self._db.close()
