"""Repair of a registered silo's ledgers: what register, ledgers and anchors know is charged, each at the most.

Nothing that is repaired is believed where it says less: a run counts as the one of register and ledger says that has
charged it more, and stays charged where either of them has lost it.
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
from fedcore.ledger.reconciliation import lost_charge, repair_said
from fedcore.ledger.sqlite import SqliteLedger

REPAIRED = ("ledger-lost",)


def reconcile(register: Register, silo: str, clock: Callable[[], datetime]) -> list[str]:
    """Repairs each ledger of a silo's account that does not fit; a line for each, none where all
    fit. Raises SiloError."""
    found = register.accounts.find(silo)
    if found is None:
        raise SiloError(silo, "register", "it is not in the register")
    lines = []
    for name in [*found.versions]:
        # Of a ledger that fits the account's other ledgers may not: each is repaired by itself.
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
    return [f"silo {silo} ({version.name[:12]}): {repair_said(runs, lost)}"]


def _given_up(register: Register, silo: str, version: Version) -> str:
    register.append([Draft("given up", silo, version.name, {})])
    charge = total(version.charges)
    said = f"its ledger is given up for good, its charges stay: mu^2 {shown_up(charge.mu_squared, 6)}"
    return f"silo {silo} ({version.name[:12]}): {said}"


def _drafts(
    silo: str, order: float | None, version: Version, ledger: SqliteLedger, lost: Charge, earlier: list[Draft]
) -> list[Draft]:
    """What the register has to learn of a ledger that was reconciled just now; `order`: the account's. `earlier`: of
    reconciliations before."""
    own, drafts = ledger.charges(), []
    for run in filter(ledger.is_run, own):
        known = version.runs.get(run)
        if known is None:
            body = {"run": run, "plan": ledger.plan(run), "charge": own[run].json, "closed": True}
            drafts.append(Draft("taken", silo, version.name, body | {"person": ledger.person}))
        else:
            charge = _most(known.charge, own[run])
            drafts.append(Draft("settled", silo, version.name, {"run": run, "charge": charge.json}))
    # What the ledger charges as lost is, as far as it goes, what the register still has by name. Of runs that were lost
    # before an earlier reconciliation has charged that.
    absent = [run for run, each in version.runs.items() if not ledger.is_run(run) and each.state != "lost"]
    rest = lost_charge(Totals.of([lost], order), order, [version.runs[run].charge for run in absent], order)
    known_runs = version.count + sum(draft.kind == "taken" for draft in drafts)
    more = max(0, ledger.runs - known_runs)
    learnt = bool(earlier or more or known_runs > version.count) or any(Totals.of([rest], order))
    link, _ = ledger.losses()[-1]
    return [*unclaimed(silo, order, learnt), *drafts, *earlier, loss_of(silo, version.name, link, rest, more, absent)]


def _most(first: Charge, second: Charge) -> Charge:
    """Of both the larger numbers; divergences of any order are at least those of both."""
    most = Totals(*map(max, Totals.of([first]), Totals.of([second]))).charge
    if first.pieces and second.pieces:
        most = replace(most, pieces=tuple(dict.fromkeys((*first.pieces, *second.pieces))))
    kept = [each.divergence for each in (first, second) if each.divergence is not None]
    if len(kept) == 2 and kept[0].order == kept[1].order:
        most = replace(most, divergence=max(kept, key=lambda each: (each.formula, each.rho)))
    return most
