"""Does any account say less than was released? Charges over the whole life of a durable ledger, worked out again.

A ledger of the auditor's own is opened, closed, gone on with, restored from an older copy and reconciled; one of an
older version is migrated; two versions of a silo's data share an account in a register. After each step charges,
statements and the site's account are compared with what the releases' events cost at least
(`fedcore.audit.accounts.cost`).
"""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Cap, Charge
from fedcore.audit.accounts.cost import gaussian, squared
from fedcore.audit.accounts.known_account import SLACK, KnownAccount, admits, chosen
from fedcore.audit.accounts.versions import registered
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
from fedcore.messages import Receipt


def accounts(subject: Subject, rng: np.random.Generator) -> Finding:
    """Counts what is charged, stated or told below the least that the releases cost, and caps that admit too much.

    statistic: such places; threshold: 0. There is no chance in it.
    """
    known = KnownAccount(subject)
    _planned(known)
    with tempfile.TemporaryDirectory() as folder:
        for life in (_lived, _migrated, _capped, _in_memory, registered):
            its = KnownAccount(subject)
            try:
                life(its, rng, Path(folder, life.__name__))
            except SiloError as error:  # whatever a correct ledger refuses here is awaited where it is asked
                its.holds(str(error), False)
            known.said += its.said
            known.compared += its.compared
    many = len(known.said)
    detail = f"{many} of {known.compared} charges, statements and refusals are below what was released"
    if many:
        detail += f"; the first: {known.said[0]}"
    return Finding("accounts", not many, float(many), 0.0, 0.0, detail)


def _planned(known: KnownAccount) -> None:
    """The plan keeps to the delta and epsilon that were agreed; of shuffled runs another epsilon, of all silos, is."""
    problem = known.subject.plan.problem
    agreed = 1.0 / known.subject.n**2 if problem.budget.fixed_delta is None else problem.budget.fixed_delta
    delta = known.subject.delta
    known.holds(f"delta is {delta:.3g}, and {agreed:.3g} is agreed", delta <= agreed * SLACK)
    target = problem.budget.epsilon
    if target is None or problem.shuffle is not None:
        return
    if problem.evaluation is not None and problem.evaluation.epsilon is not None:
        target = max(target, problem.evaluation.epsilon)
    known.covers("the plan", known.planned, target, delta)


def _lived(known: KnownAccount, rng: np.random.Generator, folder: Path) -> None:
    subject, records = known.subject, equal_records(known.subject, rng)
    path, anchor = folder / "data" / "ledger.sqlite", folder / "data" / "ledger.anchor"
    path.parent.mkdir(parents=True)

    def opened(fitting: bool = True) -> SqliteLedger:
        return SqliteLedger(subject.silo, path, anchor, fitting)

    addresses = chosen(subject)
    first, last = addresses[: (len(addresses) + 1) // 2], addresses[(len(addresses) + 1) // 2 :]
    with closing(opened()) as ledger:
        sitting = Sitting(subject, records, ledger)
        known.ask(sitting, "closed", addresses)
        known.close(sitting, "closed")
        _refused(known, sitting, "closed", set(addresses))
        known.ask(sitting, "empty", [])
        known.close(sitting, "empty")
        known.ask(sitting, "resumed", first)
        _seen(known, "while runs are open", ledger)
    with closing(opened()) as ledger:
        sitting = Sitting(subject, records, ledger)
        again = [one.payload_digest for address in first for one in sitting.sent_once("resumed", address)]
        known.holds("a resumed run releases anew", again == [row.payload_digest for row in ledger.rows("resumed")])
        known.ask(sitting, "resumed", last)
        _seen(known, "after a resume", ledger)
        known.close(sitting, "resumed")
        known.ask(sitting, "open", first)
        _seen(known, "after closing", ledger)
    known.said += [f"after closing: {fault}" for fault in faults(subject.silo, path, anchor)]
    copied = folder / "copy.sqlite"
    shutil.copyfile(path, copied)
    with closing(opened()) as ledger:
        known.ask(Sitting(subject, records, ledger), "lost", first)
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
        known.holds(f"after a reconciliation {said} is stated", said is None or gaussian(total, said) <= delta * SLACK)
    known.said += [f"after a reconciliation: {fault}" for fault in faults(subject.silo, path, anchor)]


def _refused(known: KnownAccount, sitting: Sitting, run: str, asked: set[tuple[int, int]]) -> None:
    """A closed run gives no new answer, and what it gave is given again without a charge."""
    others = [address for address in known.subject.addresses if address not in asked]
    known.silent(f"closed run {run}", sitting, run, others[:2])


def _seen(known: KnownAccount, when: str, ledger: SqliteLedger) -> None:
    known.charged(when, ledger.charges())
    known.stated(when, account(ledger))


def _in_memory(known: KnownAccount, rng: np.random.Generator, _: Path) -> None:
    """The same of simulated silos, whose ledger ends with its process."""
    ledger = MemoryLedger(known.subject.silo)
    sitting = Sitting(known.subject, equal_records(known.subject, rng), ledger)
    addresses = chosen(known.subject)
    for run, asked in (("closed", addresses), ("open", addresses[:1])):
        known.ask(sitting, run, asked)
    known.charged("in memory", ledger.charges())
    known.close(sitting, "closed")
    known.charged("in memory, after closing", ledger.charges())
    _refused(known, sitting, "closed", set(addresses))
    _restored(known, sitting, addresses)


def _restored(known: KnownAccount, before: Sitting, addresses: list[tuple[int, int]]) -> None:
    """In a new process, whose ledger is made of receipts, under a newer lease, an address that was answered gives no
    other answer."""
    known.ask(before, "restored", addresses)
    name, rows = known.subject.silo, before.written("restored")
    receipts = [(Receipt(name, row.phase, row.round, row.query_digest, row.payload_digest), row.event) for row in rows]
    sitting = Sitting(known.subject, before.records, lease=7)
    sitting.approved("restored")
    sitting.ledger.restore("restored", receipts)
    kept = {(row.phase, row.round): row.payload_digest for row in rows}
    for address in addresses:  # another question first: the same one would be written down again
        for sent in filter(None, (sitting.queries.other(address), sitting.queries.first(address))):
            known.holds(
                f"a restored run answers round {address[0]}.{address[1]} anew",
                sitting.payload("restored", address, sent) in (None, kept[address]),
            )


def _migrated(known: KnownAccount, _: np.random.Generator, folder: Path) -> None:
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


def _capped(known: KnownAccount, _: np.random.Generator, folder: Path) -> None:
    """Of two runs that each take a cap whole, no ledger and no rule admits both, also after one is closed unspent."""
    subject = known.subject
    most = _most_squared(1.0, subject.delta)
    for rule, ledger in _ledgers(subject, folder):
        with closing(ledger):
            charge = Charge(squared(known.planned), subject.plan.silo_epsilon(subject.silo), subject.delta)
            cap = Cap(charge.epsilon, charge.delta, rule)
            admitted = [run for run in ("one", "two") if admits(ledger, run, charge, cap)]
            known.holds(f"a cap ({rule}) of one run admits {len(admitted)}", len(admitted) < 2)
            if admitted:
                ledger.close_run(admitted[0], 0.75 * charge.mu_squared)
                known.holds(f"a cap ({rule}) of one run admits one more than {admitted[0]}, of which three fourths are "
                            "spent", not admits(ledger, "three", charge, cap))  # fmt: skip
    for rule, ledger in _ledgers(subject, folder / "parts"):
        with closing(ledger):
            cap = Cap(1.0, subject.delta, rule)
            parts = [Charge(part * most, part, subject.delta / 2.0) for part in (0.9, 0.11)]
            both = [admits(ledger, f"part-{at}", part, cap) for at, part in enumerate(parts)]
            known.holds(f"a cap ({rule}) of epsilon 1 admits what takes 1.01 of it", not all(both))


def _most_squared(epsilon: float, delta: float) -> float:
    """The largest squared parameter of Gaussian answers that are (epsilon, delta)-private, up to rounding above."""
    low, high = 0.0, 1.0
    while gaussian(high, epsilon) < delta:
        low, high = high, 2.0 * high
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if gaussian(middle, epsilon) < delta else (low, middle)
    return high


def _ledgers(subject: Subject, folder: Path) -> Iterator[tuple[Any, Ledger]]:
    made: list[Callable[[str], Ledger]] = [
        MemoryLedger,
        lambda rule: SqliteLedger(subject.silo, folder / rule / "a.sqlite", folder / rule / "a.anchor"),
    ]
    for rule in ("gdp", "rdp", "basic"):
        (folder / rule).mkdir(parents=True)
        for make in made:
            yield rule, make(rule)
