"""Silos that are queried, closed, restarted and tampered with in any order, beside a naive model of their releases.

The model lives outside: which payload was received at which address, and what that spends. It knows the entries as
they were when they were written, and so whether a file is still what it was.
"""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fedcore.errors import SiloError
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.ledger.storage.verify import faults
from tests.faults.one_silo import One, records
from tests.faults.tampering import COLUMNS, TAMPERINGS, copy, put, rows_of, tamper

ROUNDS = 5
RUNS = ("left", "right")
SLACK = 1 - 1e-9
REFUSED = {"replayed", "closed", "plan"}
"""Refusal codes that a silo with an unchanged file may give: another model, an ended run, an unapproved one."""
WHICH, RUN, ROUND = st.integers(0, 1), st.sampled_from(RUNS), st.integers(1, ROUNDS)
MODEL, NUMBER, COLUMN = st.sampled_from([0.0, 1.0]), st.integers(1, 12), st.sampled_from(COLUMNS.split(", "))


@dataclass
class Model:
    """Naive model of one silo: its releases, and the content of its file when it was last closed."""

    folder: Path
    one: One | None = None
    truth: Any = None
    """Rows of its file before the first tampering; the silo may have added rows since."""
    honest: bytes | None = None
    """Its file when it was closed, if it was not tampered with in the session before."""
    whole: bool = True
    """True if its file was not tampered with."""
    sent: dict[tuple[int, str, int], tuple[float, bytes]] = field(default_factory=dict)
    lost: set[tuple[int, str, int]] = field(default_factory=set)
    """Releases that the reconciled copy lacks: charged by the anchor's sums, and never sent again."""
    agreed: set[str] = field(default_factory=set)
    approved: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    life: dict[str, int] = field(default_factory=dict)
    """Number of approvals of each run. A run that a reconciliation has lost begins again, with a further charge."""

    @property
    def path(self) -> Path:
        return self.folder / "ash.sqlite"

    @property
    def files(self) -> tuple[Path, Path]:
        return self.path, self.folder / "ash.anchor"

    def attempt(self, act: Callable[[], Any]) -> bool:
        """True if `act` was not refused. A silo with an unchanged file refuses only with codes in `REFUSED`."""
        try:
            act()
        except SiloError as error:
            assert not self.whole or error.code in REFUSED, error
            return False
        return True

    def let_go(self) -> None:
        if self.one is None:
            return
        self.one.close()
        self.one, self.agreed = None, set()
        self.honest = self.path.read_bytes() if self.whole else None
        if self.whole:
            self.truth = rows_of(self.path)


class TamperedSilos(RuleBasedStateMachine):
    """Two silos with two runs each. An attacker writes to their SQLite files only, closed or open."""

    kind = "seeded"

    def __init__(self) -> None:
        super().__init__()
        shared = Path("/dev/shm")
        self.root = Path(tempfile.mkdtemp(dir=shared if shared.exists() else None))
        self.fresh, self.copies = count(), []
        self.silos = [self._new(), self._new()]
        event = self.silos[0].one.plan.phases[0].event("ash", 1)
        self.each = (event.sensitivity / event.sigma) ** 2

    def _new(self) -> Model:
        silo = Model(self.root / f"version-{next(self.fresh)}")
        silo.folder.mkdir()
        silo.one = One(silo.folder, self.kind, *records(), approve=False)
        return silo

    def teardown(self) -> None:
        try:
            for silo in self.silos:
                silo.let_go()
                self._look(silo)
        finally:
            for silo in self.silos:
                silo.let_go()
            shutil.rmtree(self.root)

    # Actions of a server and an operator

    @rule(which=WHICH, run=RUN)
    def approve(self, which: int, run: str) -> None:
        silo = self.silos[which]
        if silo.one is None:
            return
        if silo.attempt(lambda: silo.one.site.approve(replace(silo.one.agreement, run=run).to_bytes())):
            silo.agreed.add(run)
            if run not in silo.approved:
                silo.life[run] = silo.life.get(run, 0) + 1
                silo.approved.add(run)

    @rule(which=WHICH, run=RUN, round=ROUND, model=MODEL)
    def ask(self, which: int, run: str, round: int, model: float) -> None:
        silo, answers = self.silos[which], []
        if silo.one is None:
            return
        silo.one.run = run
        address = silo.life.get(run, 0), run, round
        if silo.attempt(lambda: answers.append(silo.one.ask(np.full(4, model), round).tobytes())):
            known = silo.sent.setdefault(address, (model, answers[0]))
            assert known == (model, answers[0]), f"a second answer at {address}"
        elif silo.whole and run in silo.agreed:
            known = address in silo.sent and address not in silo.lost
            assert silo.sent[address][0] != model if known else run in silo.ended

    @initialize(rounds=st.lists(ROUND, min_size=4, max_size=8))
    def begin(self, rounds: list[int]) -> None:
        for number, round in enumerate(rounds):
            self.approve(number % 2, RUNS[0])
            self.ask(number % 2, RUNS[0], round, 0.0)

    @rule(which=WHICH, run=RUN, rounds=st.sets(ROUND, min_size=1), model=MODEL)
    def ask_several(self, which: int, run: str, rounds: set[int], model: float) -> None:
        """Restores receipts, as a driver that resumes a run does."""
        if self.silos[which].one is None:
            self.restart(which)
        self.approve(which, run)
        for round in sorted(rounds):
            self.ask(which, run, round, model)

    @rule(which=WHICH, run=RUN)
    def end_run(self, which: int, run: str) -> None:
        silo = self.silos[which]
        if silo.one is not None and run in silo.approved and silo.attempt(lambda: silo.one.silo.close_run(run)):
            silo.ended.add(run)

    @rule(which=WHICH)
    def restart(self, which: int) -> None:
        silo = self.silos[which]
        silo.let_go()
        silo.attempt(lambda: setattr(silo, "one", One(silo.folder, self.kind, *records(), approve=False)))

    @rule(which=WHICH)
    def let_go(self, which: int) -> None:
        self.silos[which].let_go()

    @rule(which=WHICH)
    def interrupt(self, which: int) -> None:
        """An error of the disk, after which the file is opened anew by its name."""
        if self.silos[which].one is not None:
            self.silos[which].one.ledger._disconnect()

    @rule(which=WHICH)
    def reconcile(self, which: int) -> None:
        """Reconciles a ledger that is behind its anchor: an operator accepts the rest of it if its chain is whole."""
        silo, found = self.silos[which], []
        if silo.one is not None or silo.whole:
            return
        try:
            SqliteLedger("ash", *silo.files).close()
            return
        except SiloError as error:
            if error.code != "ledger-lost":
                return
        with suppress(SiloError):
            found.append(SqliteLedger("ash", *silo.files, fitting=False))
            found[0].reconcile()
            backup = set(found[0].charges())
            there = {(run, row.round) for run in backup for row in found[0].rows(run)}
            found[0].close()
            silo.lost |= {address for address in silo.sent if address[1:] not in there}
            silo.ended = silo.approved = silo.approved & backup
            # Bytes that do not match the chain stay in the file: checks report them, and they are never sent.
            silo.whole = not faults("ash", *silo.files)
            silo.truth, silo.honest = rows_of(silo.path), silo.path.read_bytes() if silo.whole else None
        for ledger in found:
            ledger.close()

    @rule(which=WHICH)
    def mend(self, which: int) -> None:
        """Restores the silo's file from the time of its closing, or replaces the silo by a new one."""
        silo = self.silos[which]
        if silo.whole:
            return
        if silo.one is not None or silo.honest is None:
            silo.let_go()
            self._look(silo)
            self.silos[which] = self._new()
            return
        for extra in ("-wal", "-shm", "-journal"):
            silo.path.with_name(silo.path.name + extra).unlink(missing_ok=True)
        silo.path.write_bytes(silo.honest)
        silo.whole = True

    # Attacks of an adversary who can write SQLite files, and no others

    @rule(which=WHICH, name=st.sampled_from(TAMPERINGS), a=NUMBER, b=NUMBER, column=COLUMN, closed=st.booleans())
    def tamper(self, which: int, name: str, a: int, b: int, column: str, closed: bool) -> None:
        """Between two sessions, or in one: a changed copy takes the file's place, and the file is opened anew."""
        silo = self.silos[which]
        if closed:
            silo.let_go()
        if not silo.path.exists():
            return
        if silo.one is None:
            tamper(silo.path, name, a, b, column)
            same = silo.path.exists() and silo.path.read_bytes() == silo.honest and name != "journal"
            silo.whole = silo.whole and same
            return
        with suppress(sqlite3.Error, UnicodeDecodeError):
            changed = copy(silo.path, self.root / "changed")
            if name != "journal":
                tamper(changed, name, a, b, column)
            if changed.exists():
                self._replace(silo, changed)
            if name == "journal":
                tamper(silo.path, name, a, b, column)
        self.interrupt(which)

    @rule(
        which=WHICH,
        run=RUN,
        name=st.sampled_from(TAMPERINGS),
        a=NUMBER,
        b=NUMBER,
        column=COLUMN,
        closed=st.booleans(),
        model=MODEL,
    )
    def tamper_and_ask(
        self, which: int, run: str, name: str, a: int, b: int, column: str, closed: bool, model: float
    ) -> None:
        """Queries all rounds, at the earlier model or another; then, perhaps, closes the run."""
        self.tamper(which, name, a, b, column, closed)
        self.ask_several(which, run, set(range(1, ROUNDS + 1)), model)
        if a > b:
            self.end_run(which, run)

    @rule(which=WHICH)
    def keep_copy(self, which: int) -> None:
        if self.silos[which].path.exists():
            with suppress(sqlite3.Error, UnicodeDecodeError):
                self.copies.append(copy(self.silos[which].path, self.root / f"copy-{len(self.copies)}"))

    @precondition(lambda self: self.copies)
    @rule(which=WHICH, number=NUMBER, interrupted=st.booleans())
    def roll_back(self, which: int, number: int, interrupted: bool) -> None:
        """Rolls a file back to an older copy, of this silo or of the other one."""
        instead = shutil.copy(self.copies[number % len(self.copies)], self.root / "changed")
        self._replace(self.silos[which], Path(instead))
        if interrupted:
            self.interrupt(which)

    @rule(which=WHICH, run=RUN, rounds=st.sets(ROUND, min_size=1), gone=st.booleans())
    def lose_and_reconcile(self, which: int, run: str, rounds: set[int], gone: bool) -> None:
        """Puts back a copy from before these answers, or no file, and lets an operator reconcile it."""
        silo, before = self.silos[which], self.root / "before"
        if silo.whole and silo.path.exists():
            copy(silo.path, before)
            self.ask_several(which, run, rounds, 0.0)
            silo.let_go()
            self._replace(silo, before)
            if gone:
                silo.path.unlink()
            self.reconcile(which)

    @rule()
    def swap(self) -> None:
        first, second = self.silos
        if first.path.exists() and second.path.exists():
            with suppress(sqlite3.Error, UnicodeDecodeError):
                backup = copy(first.path, self.root / "kept")
                self._replace(first, copy(second.path, self.root / "changed"))
                self._replace(second, backup)

    def _replace(self, silo: Model, instead: Path) -> None:
        if silo.one is not None and silo.whole:
            silo.truth = rows_of(copy(silo.path, self.root / "true"))
        put(silo.path, instead)
        silo.whole = False

    # Invariants

    @invariant()
    def what_left_is_charged(self) -> None:
        for silo in self.silos:
            charges: dict[str, Any] = {}
            if silo.one is not None and silo.attempt(lambda s=silo, c=charges: c.update(s.one.ledger.charges())):
                self._compare(silo, charges)

    @invariant()
    def keys_and_anchors_are_there(self) -> None:
        """Only the silo could delete keys and anchors, and it never does."""
        for silo in self.silos:
            assert all(silo.files[1].with_suffix(suffix).exists() for suffix in (".anchor", ".key"))

    def _compare(self, silo: Model, charges: dict[str, Any]) -> None:
        total = sum(charge.mu_squared for charge in charges.values())
        assert total >= SLACK * self.each * len(silo.sent), "an answer is not charged"
        for run in silo.approved:
            mine = sum(life == silo.life[run] for life, name, _ in silo.sent if name == run)
            assert charges[run].mu_squared >= SLACK * self.each * mine, f"an answer of run {run} is not charged"

    @rule(which=WHICH)
    def look(self, which: int) -> None:
        """`fedcore budget verify` finds every fault that opening missed; a ledger without faults has all releases."""
        if self.silos[which].one is None:
            self._look(self.silos[which])

    def _look(self, silo: Model) -> None:
        findings = faults("ash", *silo.files)
        if silo.whole:
            assert findings == [] and rows_of(silo.path) == silo.truth
        if findings:
            return
        # A ledger with a whole chain has and charges all releases, whoever wrote the file.
        ledger = SqliteLedger("ash", *silo.files)
        try:
            self._compare(silo, ledger.charges())
            for (life, run, round), (_, payload) in silo.sent.items():
                if life == silo.life[run] and run in silo.approved and (life, run, round) not in silo.lost:
                    row = ledger.find(run, 1, round)
                    assert row is not None and row.payload_digest == hashlib.sha256(payload).digest()
        finally:
            ledger.close()
        schema, version, entries, _ = rows_of(silo.path)
        known = silo.truth
        assert (schema, version, entries[: len(known[2])]) == known[:3], "it was changed, and nothing tells"
