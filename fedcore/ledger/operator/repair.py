"""Repair of a registered silo's ledgers: every charge that register, ledger or anchor knows stays.

Where register and ledger differ on a run, the larger charge counts. A run that either of them has lost stays charged.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from fedcore.accounting.filters import Charge
from fedcore.directed_rounding import shown_up
from fedcore.errors import SiloError
from fedcore.ledger.anchor import Totals
from fedcore.ledger.operator.account_lock import check_key, hold_account
from fedcore.ledger.operator.accounts import Account, Version, folded, total
from fedcore.ledger.operator.register import Draft, Register
from fedcore.ledger.operator.registered import RegisteredLedger, loss_of, losses, unclaimed
from fedcore.ledger.reconciliation import lost_charge, repair_summary
from fedcore.ledger.sqlite import SqliteLedger

REPAIRED = ("ledger-lost",)


def reconcile(register: Register, silo: str, clock: Callable[[], datetime]) -> list[str]:
    """Repairs each ledger of a silo's account that does not fit; returns a line for each. Raises SiloError."""
    found = register.accounts.find(silo)
    if found is None:
        raise SiloError(silo, "register", "it is not in the register")
    lines = []
    for name in [*found.versions]:
        # One ledger may fit where another does not: each is repaired by itself.
        version = register.accounts.by_name[folded(silo)].versions[name]
        if version.given_up or _fits(register, found.silo, name, clock):
            continue
        lines += _reconciled(register, found, version)
    return lines


def _fits(register: Register, silo: str, version: str, clock: Callable[[], datetime]) -> bool:
    try:
        RegisteredLedger(register, silo, version, clock).close()
    except SiloError as error:
        if error.code not in REPAIRED:
            raise
        return False
    return True


def _reconciled(register: Register, account: Account, version: Version) -> list[str]:
    silo = account.silo
    held = hold_account(register, silo)
    try:
        register.refresh()
        try:
            check_key(register, silo, version)
        except SiloError as error:
            if error.code not in REPAIRED:
                raise
            return [_given_up(register, silo, version)]
        paths = Path(version.ledger), Path(version.anchor)
        ledger = SqliteLedger(silo, *paths, fitting=False)
        try:
            order = ledger.order if account.caps.order is None else account.caps.order
            earlier = losses(ledger, version, order)
            runs, lost = ledger.reconcile(order)
            register.append(_drafts(silo, order, version, ledger, lost, earlier))
        finally:
            ledger.close()
    finally:
        os.close(held)
    return [f"silo {silo} ({version.name[:12]}): {repair_summary(runs, lost)}"]


def _given_up(register: Register, silo: str, version: Version) -> str:
    register.append([Draft("given up", silo, version.name, {})])
    charge = total(version.charges)
    result = f"its ledger is given up for good, its charges stay: mu^2 {shown_up(charge.mu_squared, 6)}"
    return f"silo {silo} ({version.name[:12]}): {result}"


def _drafts(
    silo: str, order: float | None, version: Version, ledger: SqliteLedger, lost: Charge, earlier: list[Draft]
) -> list[Draft]:
    """Entries for the register after a ledger was reconciled.

    `order`: the account's. `lost`: charge of this reconciliation. `earlier`: entries for the ones before.
    """
    own, drafts = ledger.charges(), []
    for run in filter(ledger.is_run, own):
        known = version.runs.get(run)
        if known is None:
            body = {"run": run, "plan": ledger.plan(run), "charge": own[run].json, "closed": True}
            drafts.append(Draft("taken", silo, version.name, body | {"person": ledger.person}))
        else:
            charge = _most(known.charge, own[run])
            drafts.append(Draft("settled", silo, version.name, {"run": run, "charge": charge.json}))
    # The ledger's charge for losses covers runs that the register still has by name; only the rest is recorded as lost.
    # Runs that were lost before were charged by an earlier reconciliation.
    absent = [run for run, each in version.runs.items() if not ledger.is_run(run) and each.state != "lost"]
    rest = lost_charge(Totals.of([lost], order), order, [version.runs[run].charge for run in absent], order)
    known_runs = version.count + sum(draft.kind == "taken" for draft in drafts)
    more = max(0, ledger.runs - known_runs)
    learnt = bool(earlier or more or known_runs > version.count) or any(Totals.of([rest], order))
    link, _ = ledger.losses()[-1]
    return [*unclaimed(silo, order, learnt), *drafts, *earlier, loss_of(silo, version.name, link, rest, more, absent)]


def _most(first: Charge, second: Charge) -> Charge:
    """The larger of each measure of two charges; its divergence at any order is at least that of either."""
    most = Totals(*map(max, Totals.of([first]), Totals.of([second]))).charge
    if first.pieces and second.pieces:
        most = replace(most, pieces=tuple(dict.fromkeys((*first.pieces, *second.pieces))))
    known = [each.divergence for each in (first, second) if each.divergence is not None]
    if len(known) == 2 and known[0].order == known[1].order:
        most = replace(most, divergence=max(known, key=lambda each: (each.formula, each.rho)))
    return most
