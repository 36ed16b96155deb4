"""A transaction of an SQLite file that one process writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commits the whole block or rolls it back; for a connection that begins no transactions by itself."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        # SQLite has rolled back by itself when the disk is full.
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
