"""The ledger of a simulated silo, in the memory of its process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Cap, Charge
from fedcore.ledger.caps import Caps
from fedcore.ledger.ledger import settled
from fedcore.ledger.refusals import admit, closed_before, committed_before, refuse_older, refuse_others, same_plan
from fedcore.ledger.rows import RoundLog, RoundRows, Row, Rows
from fedcore.messages import Receipt


class MemoryLedger:
    """Rows in memory, for simulated silos, with the bytes of the newest release only.

    An older release that is requested again is recomputed from the same key, and must have the committed digest.
    """

    def __init__(self, silo: str) -> None:
        self._silo = silo
        self._runs: dict[str, tuple[str, bytes, Rows]] = {}
        self._charges: dict[str, Charge] = {}
        self._caps = Caps()
        self._closed: set[str] = set()
        self._policies: list[tuple[str, str]] = []
        self._newest: tuple[str, Row] | None = None
        self._logs: dict[str, tuple[RoundLog, int]] = {}
        """By run, rows after those of `_runs`: a log of the site, and this silo's position in it."""
        self._leases: dict[str, int] = {}

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
        refuse_older(self._silo, run, self._leases.get(run, 0), lease)
        # No check of the unit: the ledger lives as long as its open silo, which has one unit.
        if run not in self._runs:
            caps = [each for each in (policy, cap) if each is not None]
            order = self._caps.under(caps)
            charge = charge.at(order)
            admit(self._silo, run, cap, self._charges.values(), charge, order)
            if (change := self._caps.change(caps, len(self._runs))) is not None:
                self._caps.take(len(self._caps.recorded) + 1, change)
            self._charges[run] = charge
        known = self._runs.setdefault(run, (plan, key, Rows(spill=True)))
        same_plan(self._silo, run, known[0], plan)
        self.fence(run, lease)
        return known[1]

    def check_lease(self, run: str, lease: int) -> None:
        refuse_others(self._silo, run, self._leases.get(run, 0), lease)

    def fence(self, run: str, lease: int) -> None:
        if lease > self._leases.get(run, 0):
            self._leases[run] = lease

    def find(self, run: str, phase: int, round: int) -> Row | None:
        log, at = self._logs.get(run, (None, 0))
        if log is not None and (found := log.place(phase, round)) is not None:
            return log.row(found, at)
        rows = self._runs[run][2]
        place = rows.place(phase, round)
        return None if place is None else self._with_bytes(run, rows.row(place))

    def commit(self, run: str, row: Row, lease: int = 0) -> None:
        self.check_lease(run, lease)
        rows = self._own_rows(run)
        place = rows.place(row.phase, row.round)
        old = None if place is None else self._with_bytes(run, rows.row(place))
        if old is not None and (old.payload is not None or old.payload_digest != row.payload_digest):
            raise committed_before(self._silo, run, row)
        if old is None and run in self._closed:
            raise closed_before(self._silo, run)
        rows.put_at(place, row)
        self._newest = (run, row)

    def is_next(self, run: str, phase: int, round: int) -> bool:
        """True if this address is after those of all rows of the run."""
        log, _ = self._logs.get(run, (None, 0))
        return log.is_next(phase, round) if log is not None and len(log) else self._runs[run][2].is_next(phase, round)

    def restore(self, run: str, receipts: Iterable[tuple[Receipt, GaussianRelease]]) -> None:
        rows = self._own_rows(run)
        for receipt, event in receipts:
            if rows.place(receipt.phase, receipt.round) is None:
                rows.put(Row(receipt.phase, receipt.round, receipt.query_digest, event, receipt.payload_digest, None))

    def _own_rows(self, run: str) -> Rows:
        """The run's rows, with those of the site's log, which other silos go on with."""
        rows = self._runs[run][2]
        if run in self._logs:
            log, at = self._logs[run]
            for place in log.after(rows.last):
                rows.put(log.row(place, at))
            if log.newest is not None:
                self._newest = (run, log.newest.row(at))
            del self._logs[run]
        return rows

    def close_run(self, run: str, mu_squared: float, lease: int | None = None) -> None:
        if lease is not None:
            self.check_lease(run, lease)
        # The key stays: it follows from a public seed, and older answers are recomputed from it.
        if run in self._runs and run not in self._closed:
            self._closed.add(run)
            self._charges[run] = settled(self._charges[run], mu_squared, self.events(run), self._caps.order)

    def forget_run(self, run: str) -> None:
        # Otherwise the rows of thousands of closed runs would stay in memory; a run that goes on is restored.
        if run in self._closed and run in self._runs:
            self._runs[run] = (*self._runs[run][:2], Rows(spill=True))
            self._logs.pop(run, None)
            if self._newest is not None and self._newest[0] == run:
                self._newest = None

    def is_closed(self, run: str) -> bool:
        return run in self._closed

    def is_run(self, run: str) -> bool:
        return run in self._runs

    @property
    def runs(self) -> int:
        return len(self._runs)

    @property
    def caps(self) -> Caps:
        return self._caps

    @property
    def disjoint(self) -> bool:
        return False

    def charges(self) -> dict[str, Charge]:
        return dict(self._charges)

    def record_policy(self, digest: str, text: str) -> None:
        if self._policies[-1:] != [(digest, text)]:
            self._policies.append((digest, text))

    def rows(self, run: str) -> list[Row]:
        if run not in self._runs:
            return []
        rows, (log, at) = self._runs[run][2], self._logs.get(run, (None, 0))
        # An interruption of `_own_rows` leaves rounds in both.
        logged = [] if log is None else [log.row(place, at) for place in log.after(rows.last)]
        return [self._with_bytes(run, row) for row in rows] + logged

    def events(self, run: str) -> list[GaussianRelease]:
        if run not in self._runs:
            return []
        rows, (log, at) = self._runs[run][2], self._logs.get(run, (None, 0))
        return rows.events() + ([] if log is None else log.events(at)[log.after(rows.last).start :])

    def _with_bytes(self, run: str, row: Row) -> Row:
        """The row, with its bytes if it is the newest one.

        Compares all fields: a forgotten run may have been restored since, or a commit interrupted.
        """
        if self._newest is None or self._newest[0] != run or self._newest[1][:5] != row[:5]:
            return row
        return row._replace(payload=self._newest[1].payload)

    def close(self) -> None:
        self._runs.clear()
        self._logs.clear()
        self._newest = None


def commit_round(ledgers: Sequence[MemoryLedger], run: str, rows: RoundRows, lease: int, whole: bool) -> None:
    """Commits row i of a round in ledger i, for all silos or none. Raises SiloError as `MemoryLedger.commit`.

    `whole`: these are all silos of a site, which share a log.
    """
    for ledger in ledgers:
        if lease != ledger._leases.get(run, 0):
            ledger.check_lease(run, lease)
        if run in ledger._closed:
            raise closed_before(ledger._silo, run)
    log = _shared_log(ledgers, run)
    if log is None or not log.is_next(rows.phase, rows.round):
        for at, ledger in enumerate(ledgers):
            if not ledger.is_next(run, rows.phase, rows.round):
                raise committed_before(ledger._silo, run, rows.row(at))
    if not whole:
        for at, ledger in enumerate(ledgers):
            ledger._own_rows(run).put(row := rows.row(at))
            ledger._newest = (run, row)
        return
    if log is None:
        log = RoundLog(len(ledgers))
        for at, ledger in enumerate(ledgers):
            ledger._own_rows(run)
            ledger._logs[run] = log, at
    log.append(rows)


def _shared_log(ledgers: Sequence[MemoryLedger], run: str) -> RoundLog | None:
    """The run's log that these ledgers share, each at its position; None if there is none."""
    log, _ = ledgers[0]._logs.get(run, (None, 0))
    shared = all(ledger._logs.get(run) == (log, at) for at, ledger in enumerate(ledgers))
    return log if shared else None
