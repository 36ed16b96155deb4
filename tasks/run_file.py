"""Readings of a run's checkpoint by processes other than its driver: lists of runs, progress and totals."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from fedcore.errors import InputError
from fedcore.messages import Receipt, receipts_of

RECEIPTS = "SELECT kept FROM receipts ORDER BY phase, round"


def mark(path: Path, **values: str) -> None:
    """Adds meta values to the file of an ended run; a deleted file stays deleted.

    Raises InputError if it cannot be written.
    """
    if not path.exists():
        return
    try:
        # mode=rw: a file that is deleted meanwhile is not created again, empty.
        address = f"{path.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(address, uri=True, isolation_level=None, timeout=30.0)) as db:
            db.execute("PRAGMA synchronous = NORMAL")  # a mark that a power cut loses is written again
            db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", list(values.items()))
    except sqlite3.Error as error:
        raise InputError(f"run folder {path.parent}: the checkpoint cannot be written ({error})") from None


def read_meta(path: Path) -> dict[str, str]:
    """Meta values of a run's file, for lists of runs; empty if there is no readable file."""
    return dict(_read_only(path, "SELECT key, value FROM meta"))


def read_progress(path: Path) -> tuple[int, int] | None:
    """Phase and round that come next, from a run's file; None if it has none."""
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
    """Round and values of `rounds` completed rounds of a phase, from `first` on.

    Raises sqlite3.Error if the file cannot be read, or lacks a round: its driver may be about to write it.
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
    """Receipts in a run's file, without those of damaged rows."""
    found: list[Receipt] = []
    for (row,) in _read_only(path, RECEIPTS):
        with suppress(ValueError):
            found += receipts_of(row)
    return found


def is_damaged(path: Path) -> bool:
    """True if the file is there and no intact database; False if a disk or another process prevents reading."""
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
    """False if the file is there and cannot be read, now or ever, so the run's state is unknown."""
    return not path.is_file() or not path.stat().st_size or _tried(path, "SELECT key FROM meta") is not None


def _read_only(path: Path, query: str) -> list[Any]:
    return _tried(path, query) or []


def _tried(path: Path, query: str) -> list[Any] | None:
    if not path.is_file():
        return None
    try:
        return _rows(f"{path.absolute().as_uri()}?mode=ro", query)
    except sqlite3.OperationalError:
        # SQLite writes an index of the log before it reads a file that has one; a full disk has no room for it. If the
        # log is empty, as after a run's end, the file alone is complete.
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
