"""Test that a register's account covers all versions of a silo's data; part of `accounts`.

A register of the auditor's own has two versions of one silo, each with a ledger. Runs of both are asked, closed, taken
over by a newer lease, capped, lost with a restored ledger and reconciled.
"""

from __future__ import annotations

import shutil
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.accounting.filters import Cap, Charge
from fedcore.audit.accounts.cost import gaussian, squared
from fedcore.audit.accounts.known_account import SLACK, KnownAccount, admits, chosen, halves
from fedcore.audit.audit_session import AuditSession
from fedcore.audit.audited_silo import AuditedSilo
from fedcore.audit.scenes import equal_records
from fedcore.directed_rounding import in_full
from fedcore.ledger.account import account
from fedcore.ledger.operator.account_lock import key_digest
from fedcore.ledger.operator.accounts import head_of, total
from fedcore.ledger.operator.register import Draft, Register
from fedcore.ledger.operator.registered import RegisteredLedger
from fedcore.ledger.operator.repair import reconcile
from fedcore.ledger.sqlite import SqliteLedger

EARLIER, LATER, OTHERS = "1" * 32, "2" * 32, "3" * 32
"""Versions of the silo's data."""


def registered(known: KnownAccount, rng: np.random.Generator, folder: Path) -> None:
    """Compares charges, statements, caps and leases of a two-version account with all releases."""
    audited, addresses = known.audited, chosen(known.audited)
    first, last = halves(addresses)
    register = _made(audited, folder)
    records = equal_records(audited, rng)

    with closing(_opened(register, audited, EARLIER)) as ledger:
        session = AuditSession(audited, records, ledger)
        known.ask(session, "closed", addresses)
        known.close(session, "closed")
        known.ask(session, "open", first)
        ledger.fence("open", 2)
        known.silent("a run that a newer lease has taken over", session, "open", last)
        known.charged("in a register", ledger.charges())
        known.charged("in a register itself", _by_run(register, audited))
        known.stated("in a register", account(ledger))
    with closing(_opened(register, audited, LATER)) as ledger:
        session = AuditSession(audited, records, ledger)
        _all_versions(known, "in another version", ledger)
        _capped(known, ledger)
        known.ask(session, "later", addresses)
        known.close(session, "later")
        known.ask(session, "open", addresses, known_as="of the same name")
        _all_versions(known, "in two versions", ledger)
    copied = folder / "copied"
    shutil.copytree(folder / EARLIER, copied)
    with closing(_opened(register, audited, EARLIER)) as ledger:
        known.ask(AuditSession(audited, records, ledger), "lost", first)
    shutil.rmtree(folder / EARLIER)
    shutil.copytree(copied, folder / EARLIER)
    known.refuses("a ledger that was restored with its anchor", lambda: _opened(register, audited, EARLIER))
    reconcile(register, audited.silo, _now)
    for version in (EARLIER, LATER):
        with closing(_opened(register, audited, version)) as ledger:
            _all_versions(known, "after a reconciliation of one version", ledger)
    register.append([_version(register, audited, folder, OTHERS, disjoint=True)])
    for version in (EARLIER, LATER):
        with closing(_opened(register, audited, version)) as ledger:
            _all_versions(known, "where a third version has other persons", ledger)


def _made(audited: AuditedSilo, folder: Path) -> Register:
    silo, drafts = audited.silo, []
    register = Register(folder / "register", silo)
    register.make()
    drafts.append(Draft("silo", silo, "", {"at": _now().isoformat()}))
    for version in (EARLIER, LATER):
        drafts.append(_version(register, audited, folder, version, disjoint=False))
    register.append(drafts)
    return register


def _version(register: Register, audited: AuditedSilo, folder: Path, version: str, disjoint: bool) -> Draft:
    places = folder / version / "a.sqlite", folder / version / "a.anchor"
    with closing(SqliteLedger(audited.silo, *places)) as ledger:
        key = key_digest(register, ledger.key)
        body: dict[str, Any] = {"ledger": str(places[0]), "anchor": str(places[1]), "key": key}
        body |= {"disjoint": disjoint, "digests": None, "records": audited.n, "head": head_of(ledger.end)}
    return Draft("version", audited.silo, version, body)


def _opened(register: Register, audited: AuditedSilo, version: str) -> RegisteredLedger:
    return RegisteredLedger(register, audited.silo, version, _now)


def _by_run(register: Register, audited: AuditedSilo) -> dict[str, Charge]:
    """Charges by run of the register alone, without any ledger."""
    read = Register(register.folder, audited.silo).accounts.find(audited.silo)
    versions = [] if read is None else read.versions.values()
    return {name: run.charge for version in versions for name, run in version.runs.items()}


def _all_versions(known: KnownAccount, when: str, ledger: RegisteredLedger) -> None:
    """Compares the account with all known releases; runs of other versions have other names in a ledger."""
    least = sum(squared(known.events(run)) for run in known.released)
    charges = list(ledger.charges().values())
    sums = total(charges)
    known.holds(
        f"{when}: mu^2 {in_full(sums.mu_squared)} is charged of {in_full(least)}", sums.mu_squared * SLACK >= least
    )
    known.holds(f"{when}: the account has {ledger.runs} runs", ledger.runs >= len(known.released))
    statement = account(ledger)
    epsilon, delta = statement["epsilon_charged"], statement["delta"]
    if delta is None:  # no charge in this version yet, and the statement has no epsilon for those of others
        return
    enough = epsilon is None or gaussian(least, epsilon) <= delta * SLACK
    known.holds(f"{when}: all versions together are stated with epsilon {epsilon}", enough)


def _capped(known: KnownAccount, ledger: RegisteredLedger) -> None:
    """Checks that a cap of one run is full where another version has an open run.

    An open run is charged in full.
    """
    audited = known.audited
    mu_squared = squared(list(audited.plan.silo_events(audited.silo)))
    charge = Charge(mu_squared, audited.plan.silo_epsilon(audited.silo), audited.delta)
    for rule in ("gdp", "rdp", "basic"):
        admitted = admits(ledger, f"beyond {rule}", charge, Cap(charge.epsilon, charge.delta, rule))
        known.holds(f"a cap ({rule}) of one run over two versions admits another", not admitted)


def _now() -> datetime:
    return datetime.now(UTC)
