"""Does any account say less than was released? Charges over the whole life of a durable ledger, worked out again.

A ledger of the auditor's own is opened, closed, gone on with, restored from an older copy and reconciled, and one of an
older version is migrated. After each step charges, statements and the site's account are compared with what the events
of the releases cost at least (`fedcore.audit.cost`).
"""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Cap, Charge
from fedcore.audit.cost import delta_at_least, gaussian, squared
from fedcore.audit.finding import Finding
from fedcore.audit.scenes import equal_records
from fedcore.audit.sitting import Sitting
from fedcore.audit.subject import Subject
from fedcore.errors import SiloError
from fedcore.ledger.account import account
from fedcore.ledger.ledger import Ledger, MemoryLedger
from fedcore.ledger.migration import migrate
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.ledger.verify import faults

ASKED = 6
"""Addresses of a run, first and last among them."""
SLACK = 1.0 + 1e-6
"""Relative, on deltas and squared parameters: rounding."""


@dataclass
class _Account:
    """What the auditor knows: released events of every run, and whether it is closed. `said`: what does not fit."""

    subject: Subject
    released: dict[str, list[GaussianRelease]] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    in_full: set[str] = field(default_factory=set)
    said: list[str] = field(default_factory=list)
    compared: int = 0

    def holds(self, what: str, right: bool) -> None:
        self.compared += 1
        if not right:
            self.said.append(what)

    def events(self, run: str) -> list[GaussianRelease]:
        """What the run is charged for at least: its releases if it was closed after them, else its plan."""
        ended = run in self.closed and run not in self.in_full
        return self.released[run] if ended else list(self.subject.plan.silo_events(self.subject.silo))

    def covers(self, what: str, events: list[GaussianRelease], epsilon: float | None, delta: float) -> None:
        """Holds an epsilon that was said (None: infinite) against the least that the events cost."""
        enough = epsilon is None or delta_at_least(events, epsilon) <= delta * SLACK
        self.holds(f"{what} says epsilon {epsilon}, which {len(events)} events exceed at delta {delta:.3g}", enough)

    def charged(self, when: str, charges: dict[str, Charge]) -> None:
        """Holds every run's charge in force against its events."""
        for run in self.released:
            charge = charges.get(run)
            if charge is None:
                self.holds(f"{when}: run {run} is charged nothing", False)
                continue
            least = squared(self.events(run))
            self.holds(
                f"{when}: run {run} is charged mu^2 {charge.mu_squared:.6g}, and its events are {least:.6g}",
                charge.mu_squared * SLACK >= least,
            )
            self.covers(f"{when}: the charge of run {run}", self.events(run), charge.epsilon, charge.delta)
            self.holds(f"{when}: run {run} is charged at delta {charge.delta}", charge.delta <= self.subject.delta)

    def stated(self, when: str, statement: dict[str, Any]) -> None:
        """Holds what an operator is shown against it: run by run, and all of them together."""
        delta = statement["delta"]
        for each in statement["runs"]:
            run, known = each["run"], self.released.get(each["run"])
            if known is None:
                continue
            self.covers(f"{when}: the statement of run {run}", self.events(run), each["epsilon_charged"], delta)
            self.covers(f"{when}: what run {run} has spent", known, each["epsilon_spent"], delta)
            self.holds(f"{when}: run {run} has {each['releases']} releases", each["releases"] == len(known))
        self.holds(f"{when}: not every run is in the statement", len(statement["runs"]) >= len(self.released))
        if len(self.released) > 1:
            for key, events in (("epsilon_charged", self.events), ("epsilon_spent", self.released.__getitem__)):
                total, said = sum(squared(events(run)) for run in self.released), statement[key]
                enough = said is None or gaussian(total, said) <= delta * SLACK
                self.holds(f"{when}: all runs together are stated with {key} {said}", enough)


def accounts(subject: Subject, rng: np.random.Generator) -> Finding:
    """Counts what is charged, stated or told below the least that the releases cost, and caps that admit too much.

    statistic: such places; threshold: 0. There is no chance in it.
    """
    known = _Account(subject)
    _planned(known)
    with tempfile.TemporaryDirectory() as folder:
        _lived(known, rng, Path(folder))
        _migrated(known, Path(folder) / "older")
        _capped(known, Path(folder) / "capped")
    _in_memory(known, rng)
    many = len(known.said)
    detail = f"{many} of {known.compared} charges, statements and refusals are below what was released"
    if many:
        detail += f"; the first: {known.said[0]}"
    return Finding("accounts", not many, float(many), 0.0, 0.0, detail)


def _planned(known: _Account) -> None:
    """The plan keeps to the epsilon that was agreed; of shuffled runs another one, of all silos together, is."""
    problem = known.subject.plan.problem
    target = problem.budget.epsilon
    if target is None or problem.shuffle is not None:
        return
    if problem.evaluation is not None and problem.evaluation.epsilon is not None:
        target = max(target, problem.evaluation.epsilon)
    events = list(known.subject.plan.silo_events(known.subject.silo))
    known.covers("the plan", events, target, known.subject.delta)


def _lived(known: _Account, rng: np.random.Generator, folder: Path) -> None:
    subject, records = known.subject, equal_records(known.subject, rng)
    path, anchor = folder / "data" / "ledger.sqlite", folder / "data" / "ledger.anchor"
    path.parent.mkdir()

    def opened(fitting: bool = True) -> SqliteLedger:
        return SqliteLedger(subject.silo, path, anchor, fitting)

    addresses = _addresses(subject)
    first, last = addresses[: (len(addresses) + 1) // 2], addresses[(len(addresses) + 1) // 2 :]
    with closing(opened()) as ledger:
        sitting = Sitting(subject, records, ledger)
        _ask(known, sitting, "closed", addresses)
        _close(known, sitting, "closed")
        _refused(known, sitting, "closed", set(addresses))
        _ask(known, sitting, "empty", [])
        _close(known, sitting, "empty")
        _ask(known, sitting, "resumed", first)
        _seen(known, "while runs are open", ledger)
    with closing(opened()) as ledger:
        sitting = Sitting(subject, records, ledger)
        again = [one.payload_digest for address in first for one in sitting.sent_once("resumed", address)]
        known.holds("a resumed run releases anew", again == [row.payload_digest for row in ledger.rows("resumed")])
        _ask(known, sitting, "resumed", last)
        _seen(known, "after a resume", ledger)
        _close(known, sitting, "resumed")
        _ask(known, sitting, "open", first)
        _seen(known, "after closing", ledger)
    known.said += [f"after closing: {fault}" for fault in faults(subject.silo, path, anchor)]
    copied = folder / "copy.sqlite"
    shutil.copyfile(path, copied)
    with closing(opened()) as ledger:
        _ask(known, Sitting(subject, records, ledger), "lost", first)
        before = ledger.charges()
    shutil.copyfile(copied, path)
    try:
        opened().close()
        known.holds("a ledger behind its anchor is opened", False)
    except SiloError:
        pass
    with closing(opened(fitting=False)) as ledger:
        ledger.reconcile()
        charges = ledger.charges()
        for name in ("mu_squared", "epsilon"):
            kept, there = (sum(getattr(charge, name) for charge in each.values()) for each in (charges, before))
            known.holds(f"a reconciliation leaves {name} {kept:.6g} of {there:.6g}", kept * SLACK >= there)
        known.holds("a reconciled ledger forgets runs", ledger.runs >= len(before))
        known.holds("a reconciled run is open", ledger.is_closed("open"))
        lost = known.released.pop("lost")
        known.closed.add("open")
        known.in_full.add("open")
        known.charged("after a reconciliation", charges)
        statement = account(ledger)
        total = sum(squared(known.events(run)) for run in known.released) + squared(lost)
        said, delta = statement["epsilon_charged"], statement["delta"]
        known.holds(
            f"after a reconciliation {said} is stated", said is None or gaussian(total, said) <= delta * SLACK
        )
    known.said += [f"after a reconciliation: {fault}" for fault in faults(subject.silo, path, anchor)]


def _addresses(subject: Subject) -> list[tuple[int, int]]:
    every = subject.addresses
    chosen = sorted({round(at) for at in np.linspace(0, len(every) - 1, min(ASKED, len(every)))})
    return [every[at] for at in chosen]


def _ask(known: _Account, sitting: Sitting, run: str, addresses: list[tuple[int, int]]) -> None:
    sitting.approved(run)
    known.released.setdefault(run, [])
    for address in addresses:
        sitting.sent_once(run, address)
        known.released[run].append(known.subject.event(address))


def _close(known: _Account, sitting: Sitting, run: str) -> None:
    said, released = sitting.account(run), known.released[run]
    known.covers(f"the site's account of run {run}", released, said.epsilon, said.delta)
    known.holds(f"the site tells of {said.releases} releases of run {run}", said.releases == len(released))
    sitting.close(run)
    known.closed.add(run)


def _refused(known: _Account, sitting: Sitting, run: str, asked: set[tuple[int, int]]) -> None:
    """A closed run gives no new answer, and what it gave is given again without a charge."""
    for address in [address for address in known.subject.addresses if address not in asked][:2]:
        known.holds(f"closed run {run} answers round {address[0]}.{address[1]}", not _answers(sitting, run, address))


def _answers(sitting: Sitting, run: str, address: tuple[int, int]) -> bool:
    try:
        sitting.sent_once(run, address)
    except SiloError:
        return False
    return True


def _seen(known: _Account, when: str, ledger: SqliteLedger) -> None:
    known.charged(when, ledger.charges())
    known.stated(when, account(ledger))


def _in_memory(known: _Account, rng: np.random.Generator) -> None:
    """The same of simulated silos, whose ledger ends with its process."""
    ledger, fresh = MemoryLedger(known.subject.silo), _Account(known.subject)
    sitting = Sitting(known.subject, equal_records(known.subject, rng), ledger)
    addresses = _addresses(known.subject)
    for run, asked in (("closed", addresses), ("open", addresses[:1])):
        _ask(fresh, sitting, run, asked)
    fresh.charged("in memory", ledger.charges())
    _close(fresh, sitting, "closed")
    fresh.charged("in memory, after closing", ledger.charges())
    _refused(fresh, sitting, "closed", set(addresses))
    known.said += fresh.said
    known.compared += fresh.compared


def _migrated(known: _Account, folder: Path) -> None:
    """A ledger of version 2, which had charges and no chain, keeps them all; its runs are closed, and paid in full."""
    subject = known.subject
    path, anchor = folder / "ledger.sqlite", folder / "ledger.anchor"
    folder.mkdir()
    events = [GaussianRelease(0, 5, 0.5, 2.0), GaussianRelease(0, 5, 0.5, 1.0)]
    planned = {"whole": 3.0 * squared(events), "spent": squared(events)}
    with closing(sqlite3.connect(path)) as db:
        db.executescript(
            "PRAGMA user_version = 2; CREATE TABLE runs (run, plan, key, mu_squared, epsilon, delta);"
            "CREATE TABLE releases (id INTEGER PRIMARY KEY, run, phase, round, query_digest, start, stop, sensitivity,"
            " sigma, payload_digest, payload);"
        )
        for run, mu_squared in planned.items():
            values = (run, "0" * 64, hashlib.sha256(run.encode()).digest(), mu_squared, 3.0, subject.delta)
            db.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?)", values)
            for round, event in enumerate(events, 1):
                payload = np.full(2, float(round)).tobytes()
                said = (run, 1, round, bytes(32), event.start, event.stop, event.sensitivity, event.sigma)
                row = (*said, hashlib.sha256(payload).digest(), payload)
                db.execute(f"INSERT INTO releases VALUES (NULL{', ?' * len(row)})", row)
        db.commit()
    migrate(subject.silo, path, anchor)
    with closing(SqliteLedger(subject.silo, path, anchor)) as ledger:
        charges = ledger.charges()
        for run, mu_squared in planned.items():
            kept = charges.get(run, Charge(0.0, 0.0, 1.0))
            enough = kept.mu_squared * SLACK >= mu_squared and kept.epsilon * SLACK >= 3.0
            known.holds(f"a migrated ledger charges {kept}", enough and kept.delta <= subject.delta)
            known.holds(f"a migrated run {run} is open", ledger.is_run(run) and ledger.is_closed(run))


def _capped(known: _Account, folder: Path) -> None:
    """Of two runs that each take a cap whole, no ledger and no rule admits both, also after one is closed unspent."""
    subject = known.subject
    events = list(subject.plan.silo_events(subject.silo))
    for rule, ledger in _ledgers(subject, folder):
        with closing(ledger):
            charge = Charge(squared(events), subject.plan.silo_epsilon(subject.silo), subject.delta)
            cap = Cap(charge.epsilon, charge.delta, rule)
            admitted = [run for run in ("one", "two") if _admits(ledger, run, charge, cap)]
            known.holds(f"a cap ({rule}) of one run admits {len(admitted)}", len(admitted) < 2)
            if admitted:
                ledger.close_run(admitted[0], 0.75 * charge.mu_squared)
                known.holds(f"a cap ({rule}) of one run admits one more than {admitted[0]}, of which three fourths are "
                            "spent", not _admits(ledger, "three", charge, cap))  # fmt: skip


def _ledgers(subject: Subject, folder: Path) -> Iterator[tuple[Any, Ledger]]:
    made: list[Callable[[str], Ledger]] = [
        MemoryLedger,
        lambda rule: SqliteLedger(subject.silo, folder / rule / "a.sqlite", folder / rule / "a.anchor"),
    ]
    for rule in ("gdp", "rdp", "basic"):
        (folder / rule).mkdir(parents=True)
        for make in made:
            yield rule, make(rule)


def _admits(ledger: Ledger, run: str, charge: Charge, cap: Cap) -> bool:
    try:
        ledger.open_run(run, "0" * 64, hashlib.sha256(run.encode()).digest(), charge, cap)
    except SiloError:
        return False
    return True
