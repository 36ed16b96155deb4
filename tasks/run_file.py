"""A run's checkpoint as it is looked at beside its driver: by lists of runs, progress and totals."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from fedcore.errors import InputError
from fedcore.messages import Receipt, receipts_of

RECEIPTS = "SELECT kept FROM receipts ORDER BY phase, round"


def mark(path: Path, **values: str) -> None:
    """Adds meta values to the file of a run that has ended, unless somebody has deleted it. Raises InputError if it
    cannot be written."""
    if not path.exists():
        return
    try:
        # mode=rw: a file that is deleted meanwhile is not made anew, empty.
        address = f"{path.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(address, uri=True, isolation_level=None, timeout=30.0)) as db:
            db.execute("PRAGMA synchronous = NORMAL")  # a mark that a power cut takes is made again
            db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", list(values.items()))
    except sqlite3.Error as error:
        raise InputError(f"run folder {path.parent}: the checkpoint cannot be written ({error})") from None


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All that is done in the block, or nothing of it; for a connection that begins no transactions by itself."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        # SQLite has rolled back by itself when the disk is full.
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def read_meta(path: Path) -> dict[str, str]:
    """Meta values of a run's file, for lists of runs; empty if there is no readable file."""
    return dict(_read_only(path, "SELECT key, value FROM meta"))


def read_progress(path: Path) -> tuple[int, int] | None:
    """(phase, round) that comes next in a run's file."""
    found = _read_only(path, "SELECT phase, round FROM progress")
    return found[0] if found else None


def read_done(path: Path) -> int:
    """Number of completed rounds in a run's file."""
    found = _read_only(path, "SELECT COUNT(*) FROM metrics")
    return int(found[0][0]) if found else 0


def read_rows(path: Path) -> list[tuple[int, int, dict[str, float]]]:
    """Phase, round and values of all completed rounds in a run's file, in their order."""
    rows = _read_only(path, "SELECT phase, round, vals FROM metrics ORDER BY phase, round")
    return [(phase, round, json.loads(values)) for phase, round, values in rows]


def rows_of_phase(path: Path, phase: int, first: int, rounds: int) -> Iterator[tuple[int, dict[str, float]]]:
    """Round and values of so many completed rounds of a phase, from the first one on; one after another.

    Raises sqlite3.Error if the file cannot be read, and if a round is not in it, for a driver may be about to write it.
    """
    query = "SELECT round, vals FROM metrics WHERE phase = ? AND round >= ? ORDER BY round LIMIT ?"
    found = 0
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=2.0)) as db:
        for round, values in db.execute(query, (phase, first, rounds)):
            yield round, json.loads(values)
            found += 1
    if found < rounds:
        raise sqlite3.OperationalError(f"{path} has {found} of {rounds} rounds so far")


def read_receipts(path: Path) -> list[Receipt]:
    """Releases that a run's file knows of; none of a row that is damaged."""
    found: list[Receipt] = []
    for (row,) in _read_only(path, RECEIPTS):
        with suppress(ValueError):
            found += receipts_of(row)
    return found


def is_damaged(path: Path) -> bool:
    """Whether the file is there and no database, or a broken one. One that a disk or another process keeps from being
    read is not."""
    if not path.is_file() or not path.stat().st_size:
        return False
    try:
        _rows(f"{path.absolute().as_uri()}?mode=ro", "SELECT key FROM meta")
    except sqlite3.OperationalError:
        return False
    except sqlite3.DatabaseError:
        return True
    return False


def is_readable(path: Path) -> bool:
    """Whether a run's file says how the run stands: False of one that is there, and nobody can read now or any more."""
    return not path.is_file() or not path.stat().st_size or _tried(path, "SELECT key FROM meta") is not None


def _read_only(path: Path, query: str) -> list[Any]:
    return _tried(path, query) or []


def _tried(path: Path, query: str) -> list[Any] | None:
    if not path.is_file():
        return None
    try:
        return _rows(f"{path.absolute().as_uri()}?mode=ro", query)
    except sqlite3.OperationalError:
        # To read a file with a log SQLite makes an index of the log, for which a full disk has no room. Where there is
        # nothing in the log, as of a run that has ended, the file alone says all.
        log = path.with_name(f"{path.name}-wal")
        if log.exists() and log.stat().st_size:
            return None
    except sqlite3.Error:
        return None
    with suppress(sqlite3.Error):
        return _rows(f"{path.absolute().as_uri()}?immutable=1", query)
    return None


def _rows(address: str, query: str) -> list[Any]:
    with closing(sqlite3.connect(address, uri=True, timeout=2.0)) as db:
        return db.execute(query).fetchall()
