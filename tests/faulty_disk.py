"""A disk that fails, or changes what it was given, at chosen statements of a ledger."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable


class FaultyDisk:
    """A ledger's connection that calls `before` with itself and a statement before each: it may raise, or write."""

    def __init__(self, db: sqlite3.Connection, before: Callable[[sqlite3.Connection, str], None]) -> None:
        self._db, self._before = db, before

    def __getattr__(self, name: str):
        return getattr(self._db, name)

    def execute(self, statement: str, *values):
        self._before(self._db, statement)
        return self._db.execute(statement, *values)
