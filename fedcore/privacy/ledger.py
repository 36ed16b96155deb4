"""The ledger of one silo: charge and released bytes, committed together before anything is sent.

Two forms behind one interface: `MemoryLedger` for simulated silos (the driver's checkpoint keeps its receipts) and
`SqliteLedger`, durable, one file per silo (WAL, synchronous=FULL, exclusive lock).
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable
from dataclasses import astuple
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from fedcore.arrays import Vector
from fedcore.errors import SiloError
from fedcore.privacy.events import GaussianRelease
from fedcore.privacy.filters import Cap, Charge
from fedcore.privacy.release import Receipt


class Row(NamedTuple):
    """One release: address, query it answered, event, and bytes (None where only the digest is kept)."""

    phase: int
    round: int
    query_digest: bytes
    event: GaussianRelease
    payload_digest: bytes
    payload: bytes | None


class Ledger(Protocol):
    """What a silo needs of its ledger."""

    def open_run(self, run: str, plan: str, key: bytes, charge: Charge, cap: Cap | None) -> bytes:
        """Reserves the run's full charge and keeps its plan digest and key, or finds the run; returns its key.

        Raises SiloError on another plan, or if the cap does not admit the charge: then nothing is kept.
        """
        ...

    def find(self, run: str, phase: int, round: int) -> Row | None:
        """The committed row of this address."""
        ...

    def commit(self, run: str, row: Row) -> None:
        """Charge and bytes in one transaction. Raises SiloError if the address is committed already."""
        ...

    def restore(self, run: str, receipts: Iterable[tuple[Receipt, GaussianRelease]]) -> None:
        """Makes rows of receipts that the driver kept, where the ledger itself does not outlive its process."""
        ...

    def rows(self, run: str) -> list[Row]:
        """All rows of the run, in order of commit."""
        ...

    def close(self) -> None: ...


class MemoryLedger:
    """Rows in memory, for simulated silos. Keeps the bytes of the newest release only: an older address that is asked
    again is computed again, from the same key, and must come out with the committed digest."""

    def __init__(self, silo: str) -> None:
        self._silo = silo
        self._runs: dict[str, tuple[str, bytes, dict[tuple[int, int], Row]]] = {}
        self._charges: dict[str, Charge] = {}
        self._newest: tuple[str, tuple[int, int]] | None = None

    def open_run(self, run: str, plan: str, key: bytes, charge: Charge, cap: Cap | None) -> bytes:
        if run not in self._runs:
            _admit(self._silo, run, cap, self._charges.values(), charge)
            self._charges[run] = charge
        known = self._runs.setdefault(run, (plan, key, {}))
        _same_plan(self._silo, run, known[0], plan)
        return known[1]

    def find(self, run: str, phase: int, round: int) -> Row | None:
        return self._runs[run][2].get((phase, round))

    def commit(self, run: str, row: Row) -> None:
        rows = self._runs[run][2]
        address = (row.phase, row.round)
        old = rows.get(address)
        if old is not None and (old.payload is not None or old.payload_digest != row.payload_digest):
            raise SiloError(self._silo, "committed", _committed(run, row))
        if self._newest is not None:
            of_run, last = self._newest
            newest = self._runs[of_run][2]
            newest[last] = Row(*newest[last][:5], None)
        rows[address] = row
        self._newest = (run, address)

    def restore(self, run: str, receipts: Iterable[tuple[Receipt, GaussianRelease]]) -> None:
        rows = self._runs[run][2]
        for receipt, event in receipts:
            row = Row(receipt.phase, receipt.round, receipt.query_digest, event, receipt.payload_digest, None)
            rows.setdefault((receipt.phase, receipt.round), row)

    def rows(self, run: str) -> list[Row]:
        return list(self._runs[run][2].values()) if run in self._runs else []

    def close(self) -> None:
        self._runs.clear()


class SqliteLedger:
    """One file per silo for life. Raises SiloError if another process holds it, or it cannot be written."""

    def __init__(self, silo: str, path: Path) -> None:
        self._silo = silo
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # The lock outlives a killed owner by no time: the operating system drops it with the process.
            self._db = sqlite3.connect(path, isolation_level=None, timeout=5.0, check_same_thread=False)
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            (tables,) = self._db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
            if not tables:
                self._db.executescript(_SCHEMA)
        except (sqlite3.Error, OSError):
            raise SiloError(
                silo, "ledger", f"its ledger {path} cannot be opened for writing, or another process holds it"
            ) from None
        if tables and version != VERSION:
            self._db.close()
            raise SiloError(
                silo,
                "ledger",
                f"its ledger {path} has version {version}, this code needs {VERSION}; charges cannot be made up for it",
            )

    def open_run(self, run: str, plan: str, key: bytes, charge: Charge, cap: Cap | None) -> bytes:
        with _Transaction(self._db, self._silo):
            found = self._db.execute("SELECT plan, key FROM runs WHERE run = ?", (run,)).fetchone()
            if found is None:
                _admit(self._silo, run, cap, self.charges().values(), charge)
                self._db.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?)", (run, plan, key, *astuple(charge)))
                found = plan, key
        known, stored = found
        _same_plan(self._silo, run, known, plan)
        return bytes(stored)

    def find(self, run: str, phase: int, round: int) -> Row | None:
        query = f"SELECT {_COLUMNS} FROM releases WHERE run = ? AND phase = ? AND round = ?"
        found = self._db.execute(query, (run, phase, round)).fetchone()
        return None if found is None else _row(found)

    def commit(self, run: str, row: Row) -> None:
        event = row.event
        with _Transaction(self._db, self._silo):
            try:
                self._db.execute(
                    f"INSERT INTO releases (run, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (run, row.phase, row.round, row.query_digest, event.start, event.stop, event.sensitivity,
                     event.sigma, row.payload_digest, row.payload),
                )  # fmt: skip
            except sqlite3.IntegrityError:
                raise SiloError(self._silo, "committed", _committed(run, row)) from None

    def restore(self, run: str, receipts: Iterable[tuple[Receipt, GaussianRelease]]) -> None:
        """Nothing to do: this ledger is the source of truth; receipts are claims."""

    def rows(self, run: str) -> list[Row]:
        query = f"SELECT {_COLUMNS} FROM releases WHERE run = ? ORDER BY id"
        return [_row(found) for found in self._db.execute(query, (run,))]

    def charges(self) -> dict[str, Charge]:
        """The charge of every run, in order of approval."""
        found = self._db.execute("SELECT run, mu_squared, epsilon, delta FROM runs ORDER BY rowid")
        return {run: Charge(*charge) for run, *charge in found}

    def close(self) -> None:
        self._db.close()


_COLUMNS = "phase, round, query_digest, start, stop, sensitivity, sigma, payload_digest, payload"
VERSION = 2
"""Of the tables. 1 had no charges."""
_SCHEMA = f"""
BEGIN;
CREATE TABLE IF NOT EXISTS runs (run TEXT PRIMARY KEY, plan TEXT NOT NULL, key BLOB NOT NULL,
    mu_squared REAL NOT NULL, epsilon REAL NOT NULL, delta REAL NOT NULL);
CREATE TABLE IF NOT EXISTS releases (
    id INTEGER PRIMARY KEY, run TEXT NOT NULL REFERENCES runs, phase INTEGER NOT NULL, round INTEGER NOT NULL,
    query_digest BLOB NOT NULL, start INTEGER NOT NULL, stop INTEGER NOT NULL, sensitivity REAL NOT NULL,
    sigma REAL NOT NULL, payload_digest BLOB NOT NULL, payload BLOB NOT NULL, UNIQUE (run, phase, round));
PRAGMA user_version = {VERSION};
COMMIT;
"""


class _Transaction:
    """BEGIN IMMEDIATE to COMMIT; any database error becomes one constant SiloError and nothing is written."""

    def __init__(self, db: sqlite3.Connection, silo: str) -> None:
        self._db, self._silo = db, silo

    def __enter__(self) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error:
            raise SiloError(self._silo, "ledger", _UNWRITABLE) from None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            # SQLite has rolled back by itself when the disk is full.
            if kind is None or self._db.in_transaction:
                self._db.execute("COMMIT" if kind is None else "ROLLBACK")
        except sqlite3.Error:
            raise SiloError(self._silo, "ledger", _UNWRITABLE) from None
        if kind is not None and issubclass(kind, sqlite3.Error):
            raise SiloError(self._silo, "ledger", _UNWRITABLE) from None


_UNWRITABLE = "its ledger could not be written; nothing was sent"


def payload_digest(message: Vector) -> tuple[bytes, bytes]:
    """Bytes of a message and their SHA-256."""
    payload = np.ascontiguousarray(message).tobytes()
    return payload, hashlib.sha256(payload).digest()


def _row(found: tuple) -> Row:
    phase, round, query_digest, start, stop, sensitivity, sigma, payload_digest, payload = found
    event = GaussianRelease(start, stop, sensitivity, sigma)
    return Row(phase, round, query_digest, event, payload_digest, payload)


def _admit(silo: str, run: str, cap: Cap | None, before: Iterable[Charge], charge: Charge) -> None:
    """Raises SiloError unless the cap admits one more run with this charge; no cap admits all."""
    charges = list(before)
    if cap is not None and not cap.admits([*charges, charge]):
        raise SiloError(
            silo,
            "cap",
            f"its cap of epsilon {cap.epsilon:g} at delta {cap.delta:.3g} ({cap.rule}) has {cap.left(charges):.4g} "
            f"left (runs so far: {len(charges)}); run {run} asks for {charge.epsilon:.4g} at delta {charge.delta:.3g}",
        )


def _same_plan(silo: str, run: str, known: str, plan: str) -> None:
    if known != plan:
        raise SiloError(silo, "plan", f"run {run} was approved with plan {known[:12]}, not with plan {plan[:12]}")


def _committed(run: str, row: Row) -> str:
    return f"round {row.phase}.{row.round} of run {run} is committed already with another answer"
