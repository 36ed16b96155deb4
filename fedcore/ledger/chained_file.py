"""A durable ledger's file and anchor: entries are verified before they count, and read back before they are sent.

The file is only storage. A process holds in memory the entries that it verified, or wrote and read back, and answers
from there; a later change of the file does not affect its answers.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from fedcore.errors import SiloError
from fedcore.ledger.anchor import GENESIS, Anchor, Mark, Totals
from fedcore.ledger.chain import Entry, Kind
from fedcore.ledger.file_lock import hold
from fedcore.ledger.locked import alone
from fedcore.ledger.rows import Rows
from fedcore.ledger.state import LedgerState, Link
from fedcore.ledger.storage.database import connect, raise_version
from fedcore.ledger.storage.entry_table import ENTRY, BrokenChainError, check_sequence, committed, releases, walk
from fedcore.ledger.storage.verify import BehindAnchorError, opened

T = TypeVar("T")
_UNWRITABLE = "its ledger could not be written; nothing was sent"
_UNANCHORED = "its anchor could not be written; nothing was sent"
_BACK = f"SELECT {ENTRY}, payload, mac, (SELECT MAX(sequence) FROM entries) FROM entries WHERE sequence = ?"


class ChainedFile:
    """The entries of `silo` in the file `path`, with anchor and key at `anchor`; makes both where there is neither.

    `fitting` False: the file may be behind its anchor; nothing may be sent before the anchor was replaced. Raises
    SiloError if another process holds the file, it cannot be written, or it does not fit its anchor or its chain.
    """

    def __init__(self, silo: str, path: Path, anchor: Path, fitting: bool = True) -> None:
        self.silo, self.version = silo, path.parent.name
        self._path, self._fitting = path, fitting
        self._closed = False
        self.lock = threading.RLock()
        self._fault: str | None = None
        self._state = LedgerState()
        self._rows: dict[str, Rows] = {}
        self._at = Link(0, GENESIS)
        self._db: sqlite3.Connection | None = None
        # The lock first: another process may be writing the anchor until it lets go of the ledger.
        self._release = weakref.finalize(self, os.close, hold(silo, path, anchor))
        # Dask holds errors with their frames, and so this object: release every lock here.
        try:
            self._db = self._connected()
            self._anchor = Anchor.read(silo, anchor)
        except BaseException:
            self._disconnect()
            self._release()
            raise
        try:
            self._open(self._db)
        except BaseException:
            self.close()
            raise

    @alone
    def close(self) -> None:
        """Closes the files. An answer that is under way cannot be committed any more."""
        self._closed = True
        self._disconnect()
        self._anchor.close()
        self._release()

    @property
    def end(self) -> Link:
        """The last entry that was verified, or written and read back."""
        return self._at

    @property
    def key(self) -> bytes:
        """The key of the chain. Raises ValueError if it is gone."""
        return self._anchor.known_key

    @property
    def order(self) -> float | None:
        """Order of the account's Renyi filter, for life; None before its first cap.

        Read from the anchor where a register records the caps.
        """
        mark = self._anchor.mark
        return self._state.caps.order if mark is None or mark.order is None else mark.order

    def has(self, link: Link) -> bool:
        """Checks that this entry is in the ledger."""
        if link.sequence > self._at.sequence:
            return False
        db = self._connection
        query = "SELECT mac FROM entries NOT INDEXED WHERE sequence = ?"
        return bool(self._verify(lambda: db.execute(query, (link.sequence,)).fetchone()) == (link.mac,))

    def _open(self, db: sqlite3.Connection) -> None:
        """Verifies all entries other than releases, and every entry that the anchor does not cover yet."""
        entries = self._verify(lambda: check_sequence(db))
        if self._anchor.key is None and (entries or not self._made()):
            raise self._damaged(f"its key {self._anchor.key_path} is gone, nothing in it can be checked")
        owner = (self.silo, self.version)
        self._state, self._at = self._verify(lambda: opened(db, self._anchor, entries, owner, self._fitting))
        if self._at.sequence == 0 and self._fitting:
            self._write([self._opening()])

    def _made(self) -> bool:
        """Makes a new key and anchor; False if there is an anchor that has lost its key."""
        try:
            return self._anchor.make()
        except OSError:
            pass
        raise SiloError(self.silo, "ledger", _UNANCHORED)

    def _opening(self) -> Entry:
        """The first entry, which names silo and data version."""
        return self._next("opening", "", json.dumps({"silo": self.silo, "data_version": self.version}, sort_keys=True))

    def _next(self, kind: Kind, run: str, body: str, ahead: int = 0) -> Entry:
        """The entry that follows the last one and `ahead` others."""
        return Entry(self._at.sequence + 1 + ahead, kind, run, 0, 0, b"", body, b"")

    def _reopen(self) -> sqlite3.Connection:
        """Opens the file again after an error that leaves open what was written, and verifies only the new entries."""
        db = self._connected()
        self._db = db
        try:
            for entry, mac in self._verify(lambda: list(walk(db, self._anchor.known_key, self._at))):
                self._take(entry, mac)
        except SiloError:
            self._disconnect()
            raise
        return db

    @property
    def _connection(self) -> sqlite3.Connection:
        """The database; opened again, and its new entries verified, if the outcome of the last COMMIT is not known."""
        if self._fault is not None:
            raise self._damaged(self._fault)
        if self._closed:
            raise self._closed_error()
        return self._db if self._db is not None else self._reopen()

    def _known(self) -> LedgerState:
        """The current state, with the entries of the last COMMIT."""
        _ = self._connection
        return self._state

    def _known_rows(self, run: str) -> Rows:
        """The run's releases, read once: from its approval to its closing, or to the end of the ledger."""
        db = self._connection
        if run not in self._rows and run in self._state.approvals:
            first, last = self._state.approvals[run].link, self._state.closings.get(run, self._at)
            self._rows[run] = self._verify(lambda: releases(db, self._anchor.known_key, run, first, last))
        return self._rows.get(run, Rows())

    def _verify(self, read: Callable[[], T]) -> T:
        """Returns the result of `read`. Raises one constant SiloError for unreadable or changed entries."""
        fault, lost = "it cannot be read", False
        try:
            with self.lock:
                return read()
        except SiloError:
            raise
        except (BrokenChainError, BehindAnchorError) as found:
            fault, lost = str(found), isinstance(found, BehindAnchorError)
        except Exception:
            pass  # a damaged field has another type, a damaged body any depth
        if self._closed:
            raise self._closed_error()
        raise self._lost(fault) if lost else self._damaged(fault)

    @alone
    def _write(
        self,
        entries: Sequence[Entry],
        payload: bytes | None = None,
        also: Callable[[sqlite3.Connection], int] | None = None,
        durable: bool = True,
        anew: bool = False,
    ) -> None:
        """Commits entries (of which one has a payload), reads them back, takes them, and writes the anchor.

        `also`: further writes of the transaction; returns the number of rows changed. `anew`: the anchor is replaced.
        Raises one constant SiloError for any error of the database. The file is then opened and verified again before
        the next use: a COMMIT that failed may have written.
        """
        db, written = self._connection, False
        macs: list[bytes] = []
        try:
            db.execute("BEGIN IMMEDIATE")
            if any(entry.kind != "release" for entry in entries):
                raise_version(db)
            changed = db.total_changes
            changing = len(entries) + (0 if also is None else also(db))
            for entry in entries:
                macs.append(self._append(db, entry, payload, macs[-1] if macs else self._at.mac))
            # Rows that a trigger changes count too.
            alone = db.total_changes - changed == changing
            db.execute("COMMIT" if alone else "ROLLBACK")
            written = True
        except sqlite3.Error:
            pass
        finally:
            if not written:
                # Also after an interruption.
                self._disconnect()
        if not written:
            raise SiloError(self.silo, "ledger", _UNWRITABLE)
        if not alone or not self._reads_back(db, entries, macs, payload):
            self._fault = "what was written to it did not come back as it was written; nothing was sent"
            raise self._damaged(self._fault)
        for entry, mac in zip(entries, macs, strict=True):
            self._take(entry, mac)
        self._write_anchor(durable, anew)

    def _append(self, db: sqlite3.Connection, entry: Entry, payload: bytes | None, before: bytes) -> bytes:
        mac = entry.mac(self._anchor.known_key, before)
        db.execute(
            f"INSERT INTO entries ({ENTRY}, payload, mac) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*entry, payload, mac)
        )
        return mac

    def _reads_back(
        self, db: sqlite3.Connection, entries: Sequence[Entry], macs: list[bytes], payload: bytes | None
    ) -> bool:
        """Checks that the entries are in the file as they were written, and are its last ones.

        Raises SiloError if they cannot be read; the file is then opened again, as after a failed COMMIT.
        """
        last, read = entries[-1].sequence, False
        try:
            found = [db.execute(_BACK, (entry.sequence,)).fetchone() for entry in entries]
            read = True
        except (sqlite3.Error, ValueError):
            pass
        finally:
            if not read:
                self._disconnect()
        if not read:
            raise SiloError(self.silo, "ledger", "its ledger could not be read back; nothing was sent")
        return found == [(*entry, payload, mac, last) for entry, mac in zip(entries, macs, strict=True)]

    def _take(self, entry: Entry, mac: bytes) -> None:
        """Adds an entry that was verified, or written and read back, to the state in memory."""
        if entry.kind == "release":
            if entry.run in self._rows:
                self._rows[entry.run].put(committed(entry), entry.sequence)
        else:
            self._state.take(entry, mac)
            if entry.kind == "approval":
                self._rows[entry.run] = Rows()
        # Last: an entry that was half taken is taken again.
        self._at = Link(entry.sequence, mac)

    @alone
    def _write_anchor(self, durable: bool, anew: bool = False) -> None:
        if self._closed:
            raise self._closed_error()
        if not self._fitting and not anew:
            raise self._lost("its ledger may be behind its anchor")
        known, state, order, written = self._anchor.mark, self._state, self.order, False
        # A release changes no total. But an entry that does may have been committed without its mark being written.
        alike = known is not None and (known.trail, known.order) == (state.trail, order)
        totals = known.totals if known is not None and alike else Totals.of(state.charges.values(), order)
        mark = Mark(*self._at, totals, state.runs, state.trail, order, state.caps.claimed)
        try:
            if anew:
                self._anchor.replace(mark)
            else:
                self._anchor.write(mark, durable or not alike)
            written = True
        except OSError:
            pass
        if not written:
            raise SiloError(self.silo, "ledger", _UNANCHORED)

    def _connected(self) -> sqlite3.Connection:
        db = connect(self.silo, self._path)
        # A connection refers to itself: without this it would hold its locks until it is garbage collected.
        weakref.finalize(self, db.close)
        return db

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _closed_error(self) -> SiloError:
        return SiloError(self.silo, "ledger", "its ledger is closed")

    def _lost(self, fault: str) -> SiloError:
        return SiloError(
            self.silo,
            "ledger-lost",
            f"{fault}; nothing is answered until `fedcore budget reconcile {self.silo}` has charged what was open",
        )

    def _damaged(self, fault: str) -> SiloError:
        return SiloError(
            self.silo,
            "ledger-damaged",
            f"its ledger {self._path} is damaged: {fault}; restore a copy of it, then `fedcore budget reconcile`",
        )
