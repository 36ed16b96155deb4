"""Registration: enters the silos of a config, or their changed data, into the operator's register."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from fedcore.accounting.filters import Charge
from fedcore.data.fingerprint import fingerprint
from fedcore.data.silo_file import SiloSource, count_records
from fedcore.errors import InputError
from fedcore.home import LedgerFolders
from fedcore.ledger.caps import caps_json
from fedcore.ledger.operator.account_lock import hold_account, key_digest
from fedcore.ledger.operator.accounts import Account, Accounts, Version
from fedcore.ledger.operator.register import Draft, Register
from fedcore.ledger.operator.registered import loss_of, unclaimed
from fedcore.ledger.reconciliation import of_order
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.silo.durable_ledger import COMMAND
from fedcore.silo.policies.policy_in_force import Clock

Ask = Callable[[str, str], bool]
"""Asks the operator to declare that the persons of a silo's new version are in no earlier one; (silo, version)."""


def register_silos(
    sources: Sequence[SiloSource], folders: LedgerFolders, new: bool, ask: Ask, clock: Clock
) -> list[str]:
    """Enters silos, or changed data of silos, into the register, all or none; returns a line for each.

    `new`: silos without an account get one. It takes over every ledger that the silo has in `folders`, with its
    charges. `ask`: called for a further version of a silo's data. Raises InputError and SiloError.
    """
    if not sources:
        raise InputError("there is no silo to register")
    register = Register.current(sources[0].name)
    _check_first(register, sources, new)
    register.make()
    drafts: list[Draft] = []
    lines: list[str] = []
    held: list[int] = []
    try:
        for source in sources:
            held.append(hold_account(register, source.name))
        register.refresh()
        for source in sources:
            result, entries = _registered(register, source, folders, ask, clock)
            if any(_same_records(draft, other) for draft in entries for other in drafts):
                raise InputError(f"silo {source.name}: its records are those of another silo of this config")
            drafts += entries
            lines.append(f"silo {source.name}: {result}")
        register.append(drafts, unless=lambda accounts: _taken_meanwhile(accounts, drafts))
    finally:
        for lock in held:
            os.close(lock)
    return lines


def _check_first(register: Register, sources: Sequence[SiloSource], new: bool) -> None:
    """Raises InputError for silos without an account, unless they are `new`; called before anything is written."""
    strangers = [source.name for source in sources if register.accounts.find(source.name) is None]
    if strangers and not new:
        named = f"{', '.join(strangers[:5])}{' ..' * (len(strangers) > 5)}"
        raise InputError(f"no account in the register {register.path} of {named}: `{COMMAND} --new` makes one")


def _registered(
    register: Register, source: SiloSource, folders: LedgerFolders, ask: Ask, clock: Clock
) -> tuple[str, list[Draft]]:
    """A sentence about the registration of a silo, and its entries."""
    silo, account = source.name, register.accounts.find(source.name)
    found = fingerprint(source, register.key)
    held = register.accounts.of_records(*found)
    if (why := register.accounts.why_not(silo, source.version, held)) is not None:
        raise InputError(f"silo {silo}: {why}")
    places = [os.path.realpath(place) for place in folders.of(source.version, silo)]
    digests = {"digests": list(found), "records": count_records(source)}
    if account is None:
        drafts = [Draft("silo", silo, "", {"at": clock().isoformat()})]
        earlier = [name for name, _ in folders.found(silo) if name != source.version]
        for name in earlier:
            drafts += _taken(register, silo, name, folders, {"digests": None, "records": 0}, False)
        drafts += _taken(register, silo, source.version, folders, digests, False)
        runs = sum(draft.kind == "taken" for draft in drafts)
        also = f", with {runs} run(s) of {1 + len(earlier)} ledger(s) that were there" if runs or earlier else ""
        return f"has an account from here on{also}", _of_one_account(drafts, None)
    version = account.versions.get(source.version)
    if version is None:
        disjoint = ask(silo, source.version)
        drafts = _taken(register, silo, source.version, folders, digests, disjoint)
        shares = "is declared to share no person with earlier ones" if disjoint else "shares the silo's account"
        return f"data version {source.version[:12]} {shares}", _of_one_account(drafts, account)
    drafts = []
    changes = []
    if [version.ledger, version.anchor] != places:
        _check_moved(register, silo, version, places)
        drafts.append(Draft("moved", silo, version.name, {"ledger": places[0], "anchor": places[1]}))
        changes.append(f"its ledger is {places[0]} from here on")
    if tuple(found) not in version.digests and held is None:
        drafts.append(Draft("records", silo, version.name, digests))
        changes.append(f"its records have changed, and share the account of data version {version.name[:12]}")
    return "; ".join(changes) or "is registered already", drafts


def _of_one_account(drafts: list[Draft], account: Account | None) -> list[Draft]:
    """Adapts the entries to the one account that they begin or join: its order is the first that was there.

    Losses of a ledger of another order count at the account's order, and caps of that ledger are left out. If several
    ledgers with charges join, each under its own caps, nothing is claimed of their sum.
    """
    silo = drafts[0].silo
    orders = [] if account is None or account.caps.order is None else [account.caps.order]
    orders += [draft.body["order"] for draft in drafts if draft.kind == "cap"]
    order = orders[0] if orders else None
    charged = {draft.version for draft in drafts if draft.kind in ("taken", "lost")}
    if account is not None:
        charged |= {version.name for version in account.versions.values() if version.charges}
    joined = []
    for draft in drafts:
        if draft.kind == "lost":
            loss = of_order(Charge.from_json(draft.body["charge"]), order)
            draft = draft._replace(body=draft.body | {"charge": loss.json})
        if draft.kind != "cap" or draft.body["order"] == order:
            joined.append(draft)
    return [*joined, *unclaimed(silo, order, len(charged) > 1)]


def _taken(
    register: Register, silo: str, version: str, folders: LedgerFolders, digests: dict[str, object], disjoint: bool
) -> list[Draft]:
    """The entries of a version, with all charges of its ledger; makes the ledger if there is none."""
    places = folders.of(version, silo)
    ledger = SqliteLedger(silo, *places)
    try:
        real = [os.path.realpath(place) for place in places]
        for account in register.accounts.by_name.values():
            for other in account.versions.values():
                if real[0] == other.ledger or real[1] == other.anchor:
                    raise InputError(f"silo {silo}: {places[0]} is the ledger of silo {account.silo} already")
        body = {"ledger": real[0], "anchor": real[1], "key": key_digest(register, ledger.key), "disjoint": disjoint}
        head = {"head": [ledger.end.sequence, ledger.end.mac.hex()]}
        drafts = [Draft("version", silo, version, body | digests)]
        charges = ledger.charges()
        for run in filter(ledger.is_run, charges):
            taken = {"run": run, "plan": ledger.plan(run), "charge": charges[run].json, "person": ledger.person}
            drafts.append(Draft("taken", silo, version, taken | {"closed": ledger.is_closed(run)}))
        lost_runs = ledger.runs - sum(map(ledger.is_run, charges))
        for number, (link, charge) in enumerate(ledger.losses()):
            drafts.append(loss_of(silo, version, link, charge, 0 if number else lost_runs))
        order = ledger.caps.order
        if order is not None:
            drafts += [Draft("cap", silo, "", caps_json(order, each.caps)) for each in ledger.caps.recorded]
        return [*drafts, Draft("head", silo, version, head)]
    finally:
        ledger.close()


def _check_moved(register: Register, silo: str, version: Version, places: Sequence[str]) -> None:
    """Raises InputError unless the ledger at `places` is the registered one and its old place is empty."""
    if os.path.lexists(version.ledger) or os.path.lexists(version.anchor):
        raise InputError(
            f"silo {silo}: its ledger is {version.ledger} by the register; another one, at {places[0]}, is no account"
        )
    if not (os.path.exists(places[0]) and os.path.exists(places[1])):
        raise InputError(f"silo {silo}: its ledger {version.ledger} is gone, and is not at {places[0]} either")
    ledger = SqliteLedger(silo, Path(places[0]), Path(places[1]))
    try:
        same = key_digest(register, ledger.key) == version.key and all(
            ledger.is_run(run) or each.state == "lost" for run, each in version.runs.items() if each.state != "reserved"
        )
        if not same or (version.head is not None and not ledger.has(version.head)):
            raise InputError(f"silo {silo}: {places[0]} is another ledger than the registered one, or an older copy")
    finally:
        ledger.close()


def _taken_meanwhile(accounts: Accounts, drafts: Sequence[Draft]) -> str | None:
    """Sentence if another process has registered these records for another silo meanwhile, else None.

    The locks held here are those of the accounts to register, not of others.
    """
    for draft in drafts:
        if (digests := draft.body.get("digests")) is not None:
            held = accounts.of_records(*digests)
            if (why := accounts.why_not(draft.silo, draft.version, held)) is not None:
                return f"silo {draft.silo}: {why}"
    return None


def _same_records(first: Draft, second: Draft) -> bool:
    mine, other = first.body.get("digests"), second.body.get("digests")
    return mine is not None and other is not None and any(a == b for a, b in zip(mine, other, strict=True))
