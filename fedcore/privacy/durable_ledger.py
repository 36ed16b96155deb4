"""The ledger that outlives its process: SQLite, one file per silo for life (WAL, synchronous=FULL, exclusive lock).

Entries are chained (`chain`) and anchored (`anchor`). One transaction is the release: what it committed was charged
once and can only be repeated; what it did not commit was never sent. Order: COMMIT, anchor, send.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from fedcore.errors import SiloError
from fedcore.privacy.anchor import GENESIS, Anchor, Mark, Totals
from fedcore.privacy.chain import Entry, Kind, approval_text, charges_of, event_of, event_text
from fedcore.privacy.events import GaussianRelease
from fedcore.privacy.filters import Cap, Charge
from fedcore.privacy.ledger import Row, admit, closed_before, committed_before, same_plan, settled
from fedcore.privacy.ledger_check import ENTRY, anchor_fault, chain_fault, run_fault
from fedcore.privacy.ledger_file import connect
from fedcore.privacy.release import Receipt

_UNWRITABLE = "its ledger could not be written; nothing was sent"
_UNANCHORED = "its anchor could not be written; nothing was sent"


class SqliteLedger:
    """The ledger of `silo` in the file `path`, with anchor and key at `anchor` (made if there is no ledger yet).

    Raises SiloError if another process holds it, it cannot be written, or it does not fit its anchor or its chain.
    `fitting` False: it may be behind its anchor; only `reconcile` and reading make sense then.
    """

    def __init__(self, silo: str, path: Path, anchor: Path, fitting: bool = True) -> None:
        self.silo, self.version = silo, path.parent.name
        self._path, self._fitting = path, fitting
        self._closed = False
        # The lock first: another process may be writing the anchor until it lets go of the ledger.
        self._db: sqlite3.Connection | None = connect(silo, path)
        try:
            self._anchor = Anchor(anchor)
        except OSError:
            self._disconnect()
            raise SiloError(silo, "ledger", f"its ledger's anchor {anchor} cannot be read") from None
        self._sequence, self._head = 0, GENESIS
        self._open()

    def open_run(self, run: str, plan: str, key: bytes, charge: Charge, cap: Cap | None) -> bytes:
        found = self._approval(run)
        if found is None:
            admit(self.silo, run, cap, self.charges().values(), charge)
            entry = self._next("approval", run, approval_text(plan, hashlib.sha256(key).hexdigest(), charge))
            with self._transaction() as db:
                # The check above and this write are one: nobody else can write while this process holds the lock.
                db.execute("INSERT INTO keys VALUES (?, ?)", (run, key))
                mac = self._append(db, entry, None)
            self._committed(entry, mac, durable=True)
            return key
        same_plan(self.silo, run, found["plan"], plan)
        with self._reading() as db:
            fault = run_fault(db, self._key, run)
            (stored,) = db.execute("SELECT key FROM keys WHERE run = ?", (run,)).fetchone() or (None,)
        if fault is not None:
            raise self._damaged(fault)
        if stored is None and not self.is_closed(run):
            raise self._damaged(f"the key of run {run} is gone")
        if stored is not None and hashlib.sha256(stored).hexdigest() != found["key_sha256"]:
            raise self._damaged(f"the key of run {run} is another one")
        return key if stored is None else bytes(stored)

    def find(self, run: str, phase: int, round: int) -> Row | None:
        address = "kind = 'release' AND run = ? AND phase = ? AND round = ?"
        with self._reading() as db:
            found = db.execute(f"SELECT {_ROW} FROM entries WHERE {address}", (run, phase, round)).fetchone()
            if found is None:
                return None
            row = _row(found)
        if hashlib.sha256(row.payload or b"").digest() != row.payload_digest:
            raise self._damaged(f"the bytes of round {phase}.{round} of run {run} are not those that were committed")
        if self._anchor.mark is None or self._anchor.mark.sequence < self._sequence:
            self._write_anchor(durable=False)  # nothing is sent that the anchor does not know of
        return row

    def commit(self, run: str, row: Row) -> None:
        with self._transaction() as db:
            if run not in self._open_runs:
                raise closed_before(self.silo, run)
            entry = self._next("release", run, event_text(row.event))._replace(
                phase=row.phase, round=row.round, query_digest=row.query_digest, payload_digest=row.payload_digest
            )
            try:
                mac = self._append(db, entry, row.payload)
            except sqlite3.IntegrityError:
                raise committed_before(self.silo, run, row) from None
        self._committed(entry, mac)

    def close_run(self, run: str, mu_squared: float) -> None:
        if run in self._open_runs:
            charge = settled(self.charges()[run], mu_squared)
            self._close([self._next("closing", run, json.dumps({"charge": asdict(charge)}, sort_keys=True))])

    def is_run(self, run: str) -> bool:
        """Whether a run of this id was ever approved."""
        return self._approval(run) is not None

    def is_closed(self, run: str) -> bool:
        return run not in self._open_runs

    def restore(self, run: str, receipts: Iterable[tuple[Receipt, GaussianRelease]]) -> None:
        """Nothing to do: this ledger is the source of truth; receipts are claims."""

    def rows(self, run: str) -> list[Row]:
        query = f"SELECT {_ROW} FROM entries WHERE kind = 'release' AND run = ? ORDER BY sequence"
        with self._reading() as db:
            return [_row(found) for found in db.execute(query, (run,))]

    def charges(self) -> dict[str, Charge]:
        """The charge in force of every run, in order of approval, and of every reconciliation."""
        query = "SELECT kind, run, body FROM entries WHERE kind != 'release' ORDER BY sequence"
        with self._reading() as db:
            return charges_of(list(db.execute(query)))

    def plan(self, run: str) -> str:
        """Digest of the plan that the run was approved with. Raises KeyError for an unknown run."""
        found = self._approval(run)
        if found is None:
            raise KeyError(run)
        return str(found["plan"])

    def reconcile(self) -> tuple[list[str], Charge]:
        """Closes every open run with its full charge, and charges what the anchor knows and the ledger has lost.

        Returns the runs it closed and what it added. The ledger and its anchor agree afterwards.
        """
        mark, runs, charges = self._anchor.mark, sorted(self._open_runs), self.charges()
        totals, known = Totals.of(charges.values()), mark.totals if mark is not None else Totals(0.0, 0.0, 0.0)
        pairs = zip(known, totals, strict=True)
        lost = Charge(*(max(0.0, there - here) if there < math.inf else there for there, here in pairs))
        entries: list[Entry] = []
        for run in runs:
            body = json.dumps({"charge": asdict(charges[run])}, sort_keys=True)
            entries.append(self._next("closing", run, body)._replace(sequence=self._sequence + 1 + len(entries)))
        body = json.dumps({"charge": asdict(lost), "anchored": mark and mark.sequence}, sort_keys=True)
        last = self._next("reconciliation", "", body)._replace(sequence=self._sequence + 1 + len(entries))
        self._close([*entries, last])
        # The other slot may hold a higher number, of entries that are lost.
        self._anchor.forget()
        self._write_anchor(durable=True)
        return runs, lost

    def close(self) -> None:
        self._closed = True
        self._disconnect()
        self._anchor.close()

    def _open(self) -> None:
        """Connects, reads where the chain ends, and checks it from the anchor on."""
        self._db = db = self._db if self._db is not None else connect(self.silo, self._path)
        try:
            self._start(db)
        except SiloError:
            self._disconnect()
            raise
        except OSError:
            self._disconnect()
            raise SiloError(self.silo, "ledger", _UNANCHORED) from None
        except (sqlite3.Error, ValueError, TypeError, KeyError):
            self._disconnect()
            raise self._damaged("it cannot be read") from None

    def _start(self, db: sqlite3.Connection) -> None:
        (entries,) = db.execute("SELECT COUNT(*) FROM entries").fetchone()
        if self._anchor.key is None:
            if entries or self._anchor.path.exists():
                raise self._damaged(f"its key {self._anchor.key_path} is gone, nothing in it can be checked")
            self._anchor.make()
        if not entries and self._anchor.mark is None:
            # Before the first entry: a ledger with entries and without anchor is one that lost it.
            self._anchor.write(Mark(0, GENESIS, Totals(0.0, 0.0, 0.0)), durable=True)
        fault = anchor_fault(db, self._anchor.mark) if self._fitting else None
        if fault is not None:
            raise SiloError(
                self.silo, "ledger-lost",
                f"{fault}; nothing is answered until `fedcore budget reconcile {self.silo}` has charged what was open",
            )  # fmt: skip
        mark = self._anchor.mark if self._fitting else None
        fault = chain_fault(db, self._key, *((mark.sequence + 1, mark.head) if mark is not None else (1, GENESIS)))
        if fault is not None:
            raise self._damaged(fault)
        self._sequence, self._head = db.execute(
            "SELECT sequence, mac FROM entries ORDER BY sequence DESC LIMIT 1"
        ).fetchone() or (0, GENESIS)
        kinds = db.execute("SELECT kind, run FROM entries WHERE kind IN ('approval', 'closing')").fetchall()
        closed = {run for kind, run in kinds if kind == "closing"}
        self._open_runs = {run for kind, run in kinds} - closed
        if self._sequence == 0:
            body = json.dumps({"silo": self.silo, "data_version": self.version}, sort_keys=True)
            entry = self._next("opening", "", body)
            with self._transaction():
                mac = self._append(db, entry, None)
            self._committed(entry, mac, durable=True)

    @property
    def _connection(self) -> sqlite3.Connection:
        """The database; opened again, and looked at, if the outcome of the last COMMIT is not known."""
        if self._closed:
            raise SiloError(self.silo, "ledger", "its ledger is closed")
        if self._db is None:
            self._open()
        if self._db is None:
            raise SiloError(self.silo, "ledger", _UNWRITABLE)
        return self._db

    @property
    def _key(self) -> bytes:
        if self._anchor.key is None:
            raise self._damaged("its key is gone")
        return self._anchor.key

    def _approval(self, run: str) -> dict | None:
        query = "SELECT body FROM entries WHERE kind = 'approval' AND run = ?"
        with self._reading() as db:
            found = db.execute(query, (run,)).fetchone()
            return None if found is None else json.loads(found[0])

    def _next(self, kind: Kind, run: str, body: str) -> Entry:
        return Entry(self._sequence + 1, kind, run, 0, 0, b"", body, b"")

    def _append(
        self, db: sqlite3.Connection, entry: Entry, payload: bytes | None, before: bytes | None = None
    ) -> bytes:
        mac = entry.mac(self._key, self._head if before is None else before)
        db.execute(f"INSERT INTO entries ({ENTRY}, payload, mac) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                   (*entry, payload, mac))  # fmt: skip
        return mac

    def _close(self, entries: list[Entry]) -> None:
        """Commits closings (and what goes with them) and forgets the keys of their runs."""
        mac: bytes | None = None
        with self._transaction() as db:
            for entry in entries:
                mac = self._append(db, entry, None, mac)
                db.execute("DELETE FROM keys WHERE run = ?", (entry.run,))
        self._committed(entries[-1], mac or b"", durable=True)
        # The log still holds the pages with the keys; secure_delete has overwritten those of the file.
        try:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error:
            self._disconnect()
            raise SiloError(self.silo, "ledger", "its ledger could not be cleared of a closed run's key") from None

    def _committed(self, entry: Entry, mac: bytes, durable: bool = False) -> None:
        self._sequence, self._head = entry.sequence, mac
        if entry.kind != "release":
            self._open_runs = self._open_runs | {entry.run} if entry.kind == "approval" else self._still_open()
        self._write_anchor(durable)

    def _still_open(self) -> set[str]:
        query = "SELECT run FROM entries WHERE kind = 'approval' EXCEPT SELECT run FROM entries WHERE kind = 'closing'"
        with self._reading() as db:
            return {run for (run,) in db.execute(query)}

    def _write_anchor(self, durable: bool) -> None:
        mark = self._anchor.mark
        # Totals change only with the entries that are written durably.
        totals = mark.totals if mark is not None and not durable else Totals.of(self.charges().values())
        try:
            self._anchor.write(Mark(self._sequence, self._head, totals), durable)
        except OSError:
            raise SiloError(self.silo, "ledger", _UNANCHORED) from None

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """The connection; whatever cannot be read in the block becomes one constant SiloError."""
        try:
            yield self._connection
        except (sqlite3.Error, ValueError, TypeError, KeyError):
            raise self._damaged("it cannot be read") from None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """BEGIN IMMEDIATE to COMMIT. Any database error becomes one constant SiloError, and the file is looked at anew
        before the next use: whether a COMMIT that failed has written is not known."""
        db = self._connection
        try:
            db.execute("BEGIN IMMEDIATE")
            yield db
            db.execute("COMMIT")
        except sqlite3.Error:
            self._disconnect()
            raise SiloError(self.silo, "ledger", _UNWRITABLE) from None
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _damaged(self, fault: str) -> SiloError:
        return SiloError(
            self.silo, "ledger-damaged",
            f"its ledger {self._path} is damaged: {fault}; restore a copy of it, then `fedcore budget reconcile`",
        )  # fmt: skip


_ROW = "phase, round, query_digest, body, payload_digest, payload"


def _row(found: tuple) -> Row:
    phase, round, query_digest, body, payload_digest, payload = found
    return Row(phase, round, query_digest, event_of(body), payload_digest, payload)
