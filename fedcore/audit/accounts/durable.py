"""Test that a durable ledger's account covers all releases; part of the instrument `accounts`.

Runs are closed, forgotten, continued by another process, lost with a restored copy, and reconciled.
"""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from fedcore.audit.accounts.cost import gaussian, squared
from fedcore.audit.accounts.known_account import SLACK, KnownAccount, chosen, halves, no_more
from fedcore.audit.audit_session import AuditSession
from fedcore.audit.scenes import equal_records
from fedcore.data.records import Records
from fedcore.directed_rounding import in_full
from fedcore.ledger.account import account
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.ledger.storage.verify import faults


def durable(known: KnownAccount, rng: np.random.Generator, folder: Path) -> None:
    """Compares charges, statements and refusals to open with what was released."""
    records = equal_records(known.audited, rng)
    _lived(known, records, folder / "lived")
    for name in ("lost", "lost again"):
        _lost(known, records, folder / "lived", name)
    _behind(known, records, folder / "behind")


def _paths(folder: Path) -> tuple[Path, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "ledger.sqlite", folder / "ledger.anchor"


def _lived(known: KnownAccount, records: Records, folder: Path) -> None:
    audited, paths, addresses = known.audited, _paths(folder), chosen(known.audited)
    first, last = halves(addresses)
    with closing(SqliteLedger(audited.silo, *paths)) as ledger:
        session = AuditSession(audited, records, ledger)
        known.ask(session, "closed", addresses)
        known.close(session, "closed")
        no_more(known, session, "closed", set(addresses))
        session.forget("closed")
        no_more(known, session, "closed", set(addresses))
        known.ask(session, "empty", [])
        known.close(session, "empty")
        known.ask(session, "resumed", first)
        _seen(known, "while runs are open", ledger)
        key = session.key("resumed")
    with closing(SqliteLedger(audited.silo, *paths)) as ledger:
        # Another process may derive other keys; a run has the key of its approval.
        session = AuditSession(replace(audited, key=audited.key[::-1]), records, ledger)
        again = [one.payload_digest for address in first for one in session.sent_once("resumed", address)]
        known.holds("a resumed run releases anew", again == [row.payload_digest for row in ledger.rows("resumed")])
        known.holds("a resumed run has another key, hence another split", session.key("resumed") == key)
        known.ask(session, "resumed", last)
        _seen(known, "after a resume", ledger)
        known.close(session, "resumed")
        known.ask(session, "open", first)
        _seen(known, "after closing", ledger)
        known.ask(session, "forgotten", first)
        session.forget("forgotten")
        session.silo.close_run("forgotten")
        known.closed.add("forgotten")
        _seen(known, "after closing what was forgotten", ledger)
    known.faults += [f"after closing: {fault}" for fault in faults(audited.silo, *paths)]


def _lost(known: KnownAccount, records: Records, folder: Path, name: str) -> None:
    """Loses a run by a restored ledger and checks that its possible cost stays charged."""
    audited, (path, anchor) = known.audited, _paths(folder)
    addresses = chosen(audited)
    shutil.copyfile(path, folder / "copy.sqlite")
    with closing(SqliteLedger(audited.silo, path, anchor)) as ledger:
        known.ask(AuditSession(audited, records, ledger), name, halves(addresses)[0])
        before = ledger.charges()
    shutil.copyfile(folder / "copy.sqlite", path)
    known.refuses("a ledger behind its anchor", partial(SqliteLedger, audited.silo, path, anchor))
    with closing(SqliteLedger(audited.silo, path, anchor, False)) as ledger:
        ledger.reconcile()
        charges = ledger.charges()
        for part in ("mu_squared", "epsilon"):
            left, there = (sum(getattr(charge, part) for charge in each.values()) for each in (charges, before))
            known.holds(f"a reconciliation leaves {part} {in_full(left)} of {in_full(there)}", left * SLACK >= there)
        known.holds("a reconciled ledger forgets runs", ledger.runs >= len(before))
        known.holds("a reconciled run is open", ledger.is_closed("open"))
        known.lost.append(known.released.pop(name))
        known.closed.add("open")
        known.in_full.add("open")
        known.charged("after a reconciliation", charges)
        statement = account(ledger)
        total = sum(squared(known.events(run)) for run in known.released) + sum(map(squared, known.lost))
        epsilon, delta = statement["epsilon_charged"], statement["delta"]
        enough = epsilon is None or gaussian(total, epsilon) <= delta * SLACK
        known.holds(f"after a reconciliation {epsilon} is stated", enough)
    known.faults += [f"after a reconciliation: {fault}" for fault in faults(audited.silo, path, anchor)]


def _behind(known: KnownAccount, records: Records, folder: Path) -> None:
    """Restores a copy from before a release of an open run and checks that it is refused."""
    audited, (path, anchor) = known.audited, _paths(folder)
    opened = partial(SqliteLedger, audited.silo, path, anchor)
    with closing(opened()) as ledger:
        AuditSession(audited, records, ledger).approved("behind")
    shutil.copyfile(path, folder / "copy.sqlite")
    with closing(opened()) as ledger:
        AuditSession(audited, records, ledger).sent_once("behind", chosen(audited)[0])
        shutil.copyfile(anchor, folder / "copy.anchor")  # as a process that was killed leaves it
    shutil.copyfile(folder / "copy.sqlite", path)
    shutil.copyfile(folder / "copy.anchor", anchor)
    known.refuses("a ledger of before its last release", opened)


def _seen(known: KnownAccount, when: str, ledger: SqliteLedger) -> None:
    known.charged(when, ledger.charges())
    known.stated(when, account(ledger))
