"""The checkpoint of a run: one SQLite file per run, one transaction per round.

Before a round's query is sent, one transaction stores the state, that query, and the metric rows and receipts of the
round before. It is atomic and, where silos have durable ledgers, on disk when it returns. (Files replaced by rename
would have to do the same for three growing lists.) `tasks.binding` binds the file to the inputs that decide the run's
bits; a run is resumed with equal inputs only.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedcore.arrays import pack, unpack
from fedcore.errors import BusyError, InputError
from fedcore.messages import Query, Receipt, packed_receipts, receipts_of
from fedcore.process.transaction import transaction
from fedcore.state import State, dump_state, load_state

PORTION = 256
"""Rounds that are read at a time."""
MOST_PENDING = 256
"""Most transactions that wait for the thread; after that the caller waits."""
T = TypeVar("T")
S = TypeVar("S", bound=State)

_SCHEMA = """
BEGIN;
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS progress (id INTEGER PRIMARY KEY CHECK (id = 1), phase INTEGER NOT NULL,
    round INTEGER NOT NULL, state BLOB NOT NULL, query BLOB);
CREATE TABLE IF NOT EXISTS metrics (phase INTEGER NOT NULL, round INTEGER NOT NULL, vals TEXT NOT NULL,
    PRIMARY KEY (phase, round));
CREATE TABLE IF NOT EXISTS receipts (phase INTEGER NOT NULL, round INTEGER NOT NULL, kept BLOB NOT NULL,
    PRIMARY KEY (phase, round));
CREATE TABLE IF NOT EXISTS models (phase INTEGER PRIMARY KEY, w BLOB NOT NULL);
COMMIT;
"""


@dataclass(frozen=True)
class MetricRow:
    """Logged values of one completed round."""

    phase: int
    round: int
    values: dict[str, float]


class RunStore:
    """Reads and writes one run's file, for one caller at a time.

    `wait`: each call returns when its transaction is done. Otherwise the store's own thread carries them out, writes
    are queued, and the next call or `close` raises their errors. `durable`: a completed transaction survives a power
    cut; otherwise it survives the end of its process. The file is never torn.
    """

    def __init__(self, path: Path, wait: bool = True, durable: bool = True) -> None:
        self.path = path
        self._durable = durable
        self._thread = None if wait else ThreadPoolExecutor(1, "checkpoint")
        self._pending: list[Future[None]] = []
        self._lease: int | None = None
        self._db = self._call(self._connect)

    def _connect(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(self.path, isolation_level=None, timeout=30.0, check_same_thread=False)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'NORMAL'}")
        db.executescript(_SCHEMA)
        return db

    def take_lease(self) -> tuple[int, bool]:
        """Takes a lease of the run (`fedcore.silo.lease`) for this driver; returns its number and if it is the first.

        From then on a driver with an older lease gets BusyError when it writes. Called under the run's lock.
        """

        def work() -> tuple[int, bool]:
            with transaction(self._db):
                before = self._meta().get("lease")
                lease = max(int(before or 0) + 1, int(time.time() * 1000))
                self._set({"lease": str(lease), "pid": str(os.getpid())})
            return lease, before is None

        self._lease, first = self._call(work)
        return self._lease, first

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction of the run's newest driver. Raises BusyError for an older one, which was paused."""
        with transaction(self._db):
            if self._lease is not None:
                found = dict(self._db.execute("SELECT key, value FROM meta WHERE key IN ('lease', 'pid')"))
                if found.get("lease") != str(self._lease):
                    raise BusyError(
                        f"run {self.path.parent.name} was taken over by process {found.get('pid', 'unknown')} while "
                        "this one was paused or had lost its lock; this one writes nothing more"
                    )
            yield

    def meta(self) -> dict[str, str]:
        return self._call(self._meta)

    def set_meta(self, first: Callable[[], None] | None = None, /, **values: str | int | float | None) -> None:
        """Writes values (as text); None removes a key.

        `first` runs inside the transaction, so only the run's newest driver runs it, and no other takes a lease
        meanwhile.
        """
        gone = [(key,) for key, value in values.items() if value is None]
        given = {key: str(value) for key, value in values.items() if value is not None}

        def work() -> None:
            with self._writing():
                if first is not None:
                    first()
                self._db.executemany("DELETE FROM meta WHERE key = ?", gone)
                self._set(given)

        self._call(work)

    def save(
        self,
        state: State,
        query: Query | None,
        metrics: MetricRow | None = None,
        receipts: Sequence[Receipt] = (),
        model: tuple[int, np.ndarray] | None = None,
    ) -> None:
        """Stores state and next query, with metrics and receipts of the round before, in one transaction.

        `model`: (phase, w) if the round before was the last of its phase.
        """
        blobs = pack(dump_state(state)), None if query is None else query.to_bytes()

        def work() -> None:
            with self._writing():
                self._db.execute(
                    "INSERT OR REPLACE INTO progress VALUES (1, ?, ?, ?, ?)", (state.phase, state.round, *blobs)
                )
                if metrics is not None:
                    self._db.execute(
                        "INSERT OR REPLACE INTO metrics VALUES (?, ?, ?)",
                        (metrics.phase, metrics.round, json.dumps(metrics.values)),
                    )
                if receipts:
                    address = receipts[0].phase, receipts[0].round
                    self._db.execute(
                        "INSERT OR REPLACE INTO receipts VALUES (?, ?, ?)", (*address, packed_receipts(receipts))
                    )
                if model is not None:
                    self._db.execute("INSERT OR REPLACE INTO models VALUES (?, ?)", (model[0], pack({"w": model[1]})))

        if self._thread is None:
            self._call(work)
        else:
            self._raise_finished()
            if len(self._pending) >= MOST_PENDING:  # with a disk slower than rounds, the queue would fill the memory
                wait(self._pending[:1])
                self._raise_finished()
            self._pending.append(self._thread.submit(work))

    def load(self, kind: type[S]) -> tuple[S, Query | None] | None:
        """State and next query of the newest checkpoint; None for a new run. Raises InputError if it is damaged."""

        def work() -> tuple[S, Query | None] | None:
            found = self._db.execute("SELECT state, query FROM progress").fetchone()
            if found is None:
                return None
            state, query = found
            return load_state(kind, unpack(state)), None if query is None else Query.from_bytes(query)

        try:
            return self._call(work)
        except (ValueError, KeyError) as error:
            raise InputError(f"checkpoint {self.path} is damaged and cannot be resumed: {error}") from None

    def metric_rows(self) -> Iterator[MetricRow]:
        """Rows of all completed rounds, in order."""
        return (MetricRow(phase, round, json.loads(values)) for phase, round, values in self._stored("metrics", "vals"))

    def newest_row(self) -> MetricRow | None:
        """Row of the last completed round; None if there is none."""
        found = self._newest("metrics", "vals")
        return None if found is None else MetricRow(found[0], found[1], json.loads(found[2]))

    def done(self) -> dict[int, int]:
        """Number of completed rounds, by phase."""
        return dict(self._rows("SELECT phase, COUNT(*) FROM metrics GROUP BY phase"))

    def receipts(self) -> Iterator[Receipt]:
        """All saved receipts, in the order of rounds. Raises InputError at a damaged one."""
        for _, _, row in self._stored("receipts", "kept"):
            try:
                found = receipts_of(row)
            except ValueError as error:
                raise InputError(f"checkpoint {self.path} is damaged and cannot be resumed: {error}") from None
            yield from found

    def newest_receipts(self) -> tuple[int, int] | None:
        """Phase and round of the receipts saved last; None if there are none."""
        found = self._newest("receipts", "kept")
        return None if found is None else found[:2]

    def models(self) -> dict[int, np.ndarray]:
        """Models of completed phases."""
        return {phase: unpack(w)["w"] for phase, w in self._rows("SELECT phase, w FROM models")}

    def _stored(self, table: str, column: str) -> Iterator[tuple[int, int, Any]]:
        """Phase, round and this column of each row, read in portions: a long run's rows take gigabytes."""
        after = "WHERE (phase, round) > (?, ?) ORDER BY phase, round LIMIT ?"
        query = f"SELECT phase, round, {column} FROM {table} {after}"
        rows = self._rows(query, 0, 0, PORTION)
        while rows:
            yield from rows
            rows = self._rows(query, *rows[-1][:2], PORTION)

    def _newest(self, table: str, column: str) -> tuple[int, int, Any] | None:
        found = self._rows(f"SELECT phase, round, {column} FROM {table} ORDER BY phase DESC, round DESC LIMIT 1")
        return found[0] if found else None

    def _rows(self, query: str, *values: int) -> list[Any]:
        return self._call(lambda: self._db.execute(query, values).fetchall())

    def close(self) -> None:
        """Waits for queued writes and closes the file. Raises the first error of a queued write."""
        if self._thread is None:
            self._db.close()
            return
        try:
            self._thread.submit(self._db.close).result()
            self._raise_finished()
        finally:
            self._thread.shutdown()

    def _call(self, work: Callable[[], T]) -> T:
        self._raise_finished()
        try:
            return work() if self._thread is None else self._thread.submit(work).result()
        except (sqlite3.Error, OSError) as error:
            raise self._unwritable(error) from None

    def _raise_finished(self) -> None:
        while self._pending and self._pending[0].done():
            try:
                self._pending.pop(0).result()
            except (sqlite3.Error, OSError) as error:
                raise self._unwritable(error) from None

    def _unwritable(self, error: Exception) -> InputError:
        return InputError(
            f"run folder {self.path.parent}: the checkpoint cannot be read or written ({error}); "
            "free some space or mend its permissions, then resume"
        )

    def _meta(self) -> dict[str, str]:
        return dict(self._db.execute("SELECT key, value FROM meta"))

    def _set(self, values: dict[str, str]) -> None:
        self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", list(values.items()))
