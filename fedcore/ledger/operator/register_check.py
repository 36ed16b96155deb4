"""Checks of the register against its ledgers and their anchors, for `budget verify`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from fedcore.errors import SiloError
from fedcore.ledger.anchor import Anchor
from fedcore.ledger.operator.account_lock import check_key, hold_account
from fedcore.ledger.operator.accounts import Version
from fedcore.ledger.operator.register import Register
from fedcore.ledger.operator.registered import covers
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.ledger.storage.verify import faults as ledger_faults


def faults(register: Register, silo: str | None, head: str | None) -> Iterator[tuple[str, str, list[str]]]:
    """(silo, version, faults as sentences) of each registered ledger, or of those of one silo.

    The register itself was verified when it was read. `head`: one that its operator wrote down, which must be one that
    the register has had. Takes the locks of accounts and ledgers.
    """
    if head is not None:
        known = head.strip() in set(register.heads())
        fault = f"the register never had the head {head.strip()}: it was restored from before, or is another one"
        yield "register", "", [] if known else [fault]
    else:
        yield "register", "", []
    for account in list(register.accounts.by_name.values()):
        if silo is not None and account.silo != silo:
            continue
        for version in account.versions.values():
            try:
                lock = hold_account(register, account.silo)
                try:
                    found = list(_faults(register, account.silo, version))
                finally:
                    os.close(lock)
            except SiloError as error:
                found = [error.sentence]
            yield account.silo, version.name, found


def _faults(register: Register, silo: str, version: Version) -> Iterator[str]:
    if version.given_up:
        return
    check_key(register, silo, version)
    paths = Path(version.ledger), Path(version.anchor)
    found = ledger_faults(silo, *paths)
    yield from found
    mark = Anchor.read(silo, paths[1]).mark
    if mark is not None and version.behind(mark):
        yield "its ledger's anchor has seen more than the register: the register was restored from before"
    if found:
        return
    ledger = SqliteLedger(silo, *paths)
    try:
        if version.head is not None and not ledger.has(version.head):
            yield f"its ledger lacks entry {version.head.sequence}, which the register saw: it is an older copy"
        charges = ledger.charges()
        for run in filter(ledger.is_run, charges):
            known = version.runs.get(run)
            if known is None or not covers(known.charge, charges[run]):
                yield f"the register does not have the charge of run {run}, which is in its ledger"
        for run, each in version.runs.items():
            if not ledger.is_run(run) and each.state in ("open", "closed"):
                yield f"run {run} is in the register, and not in its ledger"
    finally:
        ledger.close()
