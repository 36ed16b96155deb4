"""The durable ledger: one SQLite file per silo for life (WAL, synchronous=FULL, exclusive locks).

Entries are chained (`chain`), anchored (`anchor`), verified and held in memory (`chained_file`). One transaction makes
a release. A committed release was charged once and can only be repeated; an uncommitted one was never sent. Order:
COMMIT, read back, anchor, send.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Cap, Charge
from fedcore.errors import SiloError
from fedcore.ledger.caps import Caps
from fedcore.ledger.chain import Entry, approval_text, event_text, lease_text, policy_text
from fedcore.ledger.chained_file import ChainedFile
from fedcore.ledger.file_lock import note_holder
from fedcore.ledger.ledger import settled
from fedcore.ledger.locked import alone
from fedcore.ledger.reconciliation import lost_charge
from fedcore.ledger.refusals import (
    admit,
    closed_before,
    committed_before,
    other_unit,
    refuse_older,
    refuse_others,
    same_plan,
)
from fedcore.ledger.rows import Row, check_row
from fedcore.ledger.state import Link
from fedcore.ledger.storage.entry_table import anchor_fault, changes
from fedcore.messages import Receipt
from fedcore.randomness import derive


class SqliteLedger(ChainedFile):
    """A silo's ledger in a `ChainedFile`: implements `fedcore.ledger.ledger.Ledger` and the operator's repairs.

    A row that `rows` returns has no bytes; `find` reads them.
    """

    @property
    def secret(self) -> bytes:
        """32 secret bytes of this ledger, from which the keys of its runs follow. Raises ValueError if its key is gone.

        A ledger that was restored from a copy gives a run the same key again, so the same question has the same noise.
        """
        return derive(self._anchor.known_key, "keys of runs")

    @alone
    def open_run(
        self,
        run: str,
        plan: str,
        key: bytes,
        charge: Charge,
        cap: Cap | None,
        person: str | None = None,
        lease: int = 0,
        policy: Cap | None = None,
    ) -> bytes:
        known = self._known().approvals.get(run)
        held = self._state.leases.get(run, 0)
        refuse_older(self.silo, run, held, lease)
        note_holder(self._anchor.path, run)
        if known is None:
            self._check_unit(run, person)
            caps = [each for each in (policy, cap) if each is not None]
            order, change = self._order(caps)
            charge = charge.at(order)
            admit(self.silo, run, cap, self._state.charges.values(), charge, order)
            changed = [] if change is None else [self._next("cap", "", json.dumps(change, sort_keys=True))]
            body = approval_text(plan, hashlib.sha256(key).hexdigest(), charge, person)
            entry = self._next("approval", run, body, len(changed))
            # No other process can write between the check above and this write: this one holds the locks.
            insert = "INSERT INTO keys VALUES (?, ?)"
            taken = [self._lease(run, lease, 1 + len(changed))] if lease else []
            self._write([*changed, entry, *taken], also=lambda db: db.execute(insert, (run, key)).rowcount)
            return key
        same_plan(self.silo, run, known.plan, plan)
        self._known_rows(run)
        stored = self._key_of(run)
        if stored is None and self._state.is_open(run):
            raise self._damaged(f"the key of run {run} is gone")
        if stored is not None and hashlib.sha256(stored).hexdigest() != known.key_sha256:
            raise self._damaged(f"the key of run {run} is another one")
        if lease > held:
            self._write([self._lease(run, lease)])
        return key if stored is None else stored

    def _order(self, caps: Sequence[Cap]) -> tuple[float | None, dict[str, Any] | None]:
        """The order at which a run under these caps is charged, and the body of their entry (None: unchanged)."""
        return self.caps.under(caps), self.caps.change(caps, self.runs)

    @property
    def caps(self) -> Caps:
        return self._known().caps

    def check_lease(self, run: str, lease: int) -> None:
        refuse_others(self.silo, run, self._known().leases.get(run, 0), lease)

    @alone
    def fence(self, run: str, lease: int) -> None:
        """Records a newer lease of an approved run."""
        state = self._known()
        if run in state.approvals and lease > state.leases.get(run, 0):
            self._write([self._lease(run, lease)])

    def _lease(self, run: str, lease: int, ahead: int = 0) -> Entry:
        return self._next("lease", run, lease_text(lease), ahead)

    @property
    def person(self) -> str | None:
        """The column of persons that all charges are for; None: for records, or no charges yet."""
        return self._known().person

    _elsewhere = (
        ", or give the silo another name in data.silos: an account of its own, which does not count what this one spent"
    )

    def _check_unit(self, run: str, person: str | None) -> None:
        """Raises SiloError if this ledger was charged for another unit: the sum would bound neither."""
        held = self._known().person
        if not self._state.charges or held == person:
            return
        raise other_unit(self.silo, run, self._path, (held, person), self._elsewhere)

    @alone
    def find(self, run: str, phase: int, round: int) -> Row | None:
        rows = self._known_rows(run)
        place = rows.place(phase, round)
        if place is None:
            return None
        if rows.number(place) > self._at.sequence:
            # Its commit was interrupted before the entry was taken: it is read again, so that the anchor covers it.
            self._disconnect()
            rows = self._known_rows(run)
        row, at = rows.row(place), (rows.number(place),)
        db, query = self._connection, "SELECT payload FROM entries NOT INDEXED WHERE sequence = ?"
        (payload,) = self._verify(lambda: db.execute(query, at).fetchone() or (None,))
        if type(payload) is not bytes or hashlib.sha256(payload).digest() != row.payload_digest:
            raise self._damaged(f"the bytes of round {phase}.{round} of run {run} are not those that were committed")
        if self._anchor.mark is None or self._anchor.mark.sequence < self._at.sequence:
            self._write_anchor(durable=False)  # nothing is sent that the anchor does not cover
        return row._replace(payload=payload)

    @alone
    def commit(self, run: str, row: Row, lease: int = 0) -> None:
        self.check_lease(run, lease)
        if not self._known().is_open(run):
            raise closed_before(self.silo, run)
        if self._known_rows(run).place(row.phase, row.round) is not None:
            raise committed_before(self.silo, run, row)
        check_row(row)  # before it is written: every written entry has to be valid
        entry = self._next("release", run, event_text(row.event))._replace(
            phase=row.phase, round=row.round, query_digest=row.query_digest, payload_digest=row.payload_digest
        )
        self._write([entry], row.payload, durable=False)

    @alone
    def close_run(self, run: str, mu_squared: float, lease: int | None = None) -> None:
        if lease is not None:
            self.check_lease(run, lease)
        if self._known().is_open(run):
            rows = self._known_rows(run)  # verified here, also if this process has answered no round of the run
            charge = settled(self._state.charges[run], mu_squared, rows.events(), self.caps.order)
            self._close([self._closing(run, charge)])

    def is_run(self, run: str) -> bool:
        """True if a run of this id was ever approved."""
        return run in self._known().approvals

    @property
    def runs(self) -> int:
        return self._known().runs

    @property
    def disjoint(self) -> bool:
        return False

    def is_closed(self, run: str) -> bool:
        return not self._known().is_open(run)

    def restore(self, run: str, receipts: Iterable[tuple[Receipt, GaussianRelease]]) -> None:
        """Does nothing: this ledger is the source of truth; receipts are claims."""

    def forget_run(self, run: str) -> None:
        """Does nothing: the verified rows of a run stay in memory."""

    def rows(self, run: str) -> list[Row]:
        return list(self._known_rows(run))

    def events(self, run: str) -> list[GaussianRelease]:
        return self._known_rows(run).events()

    def charges(self) -> dict[str, Charge]:
        """The charge in force of every run, in order of approval, and of every reconciliation."""
        return dict(self._known().charges)

    def losses(self) -> list[tuple[Link, Charge]]:
        """Each reconciliation's entry, and its charge for lost entries."""
        return self._known().losses

    def plan(self, run: str) -> str:
        """Digest of the plan that the run was approved with. Raises KeyError for an unknown run."""
        return self._known().approvals[run].plan

    @alone
    def record_policy(self, digest: str, text: str) -> None:
        known = self.policies()
        if not known or known[-1][1:] != (digest, text):
            self._write([self._next("policy", "", policy_text(digest, text))])

    def policies(self) -> list[tuple[int, str, str]]:
        """(number of the entry, digest, canonical text) of every recorded policy, oldest first."""
        found = [(each.sequence, json.loads(each.body)) for each in self._known().entries if each.kind == "policy"]
        return [(sequence, body["sha256"], body["policy"]) for sequence, body in found]

    @alone
    def reconcile(self, order: float | None = None) -> tuple[list[str], Charge]:
        """Closes every open run with its full charge, and charges entries that the anchor knows and the ledger lost.

        `order`: the account's, where a register records its caps; None: the anchor's. Returns the runs it closed and
        the charge it added. The ledger and its anchor agree afterwards.
        """
        state, mark = self._known(), self._anchor.mark
        runs, charges = state.open_runs, state.charges
        db, order = self._connection, self.order if order is None else order
        lost = Charge(0.0, 0.0, 0.0).at(order)
        if mark is not None and self._verify(lambda: anchor_fault(db, mark, changes(db))) is not None:
            lost = lost_charge(mark.totals, mark.order, charges.values(), order)
        entries = [] if self._at.sequence else [self._opening()]
        caps = None if mark is None else state.caps.again(mark.order, mark.claimed)
        if caps is not None:
            entries.append(self._next("cap", "", json.dumps(caps, sort_keys=True), len(entries)))
        for run in runs:
            entries.append(self._closing(run, charges[run], len(entries)))
        known_runs = mark.runs if mark is not None else 0
        losses = {"charge": lost.json, "anchored": mark and mark.sequence, "runs": max(0, known_runs - state.runs)}
        body = json.dumps(losses, sort_keys=True)
        # The anchor may hold the higher number of a lost entry: it is replaced.
        self._close([*entries, self._next("reconciliation", "", body, len(entries))], anew=True)
        self._fitting = True
        return runs, lost

    def _closing(self, run: str, charge: Charge, ahead: int = 0) -> Entry:
        return self._next("closing", run, json.dumps({"charge": charge.json}, sort_keys=True), ahead)

    def _close(self, entries: list[Entry], anew: bool = False) -> None:
        """Commits closings (and the entries with them) and deletes the keys of their runs."""

        def forget(db: sqlite3.Connection) -> int:
            return sum(db.execute("DELETE FROM keys WHERE run = ?", (entry.run,)).rowcount for entry in entries)

        self._write(entries, also=forget, anew=anew)
        # The write-ahead log still holds the pages with the keys; secure_delete has overwritten those of the file.
        cleared = False
        try:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            cleared = True
        except sqlite3.Error:
            pass
        if not cleared:
            self._disconnect()
            raise SiloError(self.silo, "ledger", "its ledger could not be cleared of a closed run's key")

    def _key_of(self, run: str) -> bytes | None:
        """The stored key of the run; None if there is none."""
        db = self._connection
        found = self._verify(lambda: db.execute("SELECT key FROM keys WHERE run = ?", (run,)).fetchone())
        if found is not None and type(found[0]) is not bytes:
            raise self._damaged(f"the key of run {run} is another one")
        return None if found is None else found[0]
