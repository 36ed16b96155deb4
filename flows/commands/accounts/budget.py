"""`fedcore budget`: what each silo has spent, by its durable ledgers and by the register of its operator."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedcore.upward import rounded_up
from flows.commands.accounts.budget_register import clock, register
from flows.commands.arguments import console
from flows.terminal import Terminal

if TYPE_CHECKING:
    from fedcore.ledger.operator.register import Register
    from fedcore.ledger.sqlite import SqliteLedger

app = typer.Typer(
    name="budget",
    no_args_is_help=True,
    help="What silos have spent, by their durable ledgers (`privacy.ledger: sqlite`). Simulated silos with ledgers in "
    "memory are not listed: `fedcore report` shows their runs. A ledger that a run holds is refused.",
)

app.command()(register)
app.command()(clock)

Silo = Annotated[str | None, typer.Argument(help="only the silo of this name")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON on standard output and nothing else")]


@app.command()
def show(silo: Silo = None, as_json: AsJson = False) -> None:
    """Per silo: runs, releases, charge and spending of all runs together; of one SILO, each run by phase and round."""
    from fedcore.ledger.account import account
    from fedcore.ledger.operator.statement import statement

    accounts = []
    for version, name in _found(silo):
        with _opened(version, name) as ledger:
            accounts.append(account(ledger) | {"account": statement(_register(), name)})
    if as_json:
        print(json.dumps(accounts, indent=2))
        return
    from flows.reports.table import plain_table

    table = plain_table()
    for head in ("silo", "data version", "runs", "open", "releases", "charged", "spent", "delta", "unit", "whole silo"):
        table.add_column(head, justify="left" if head in ("silo", "data version", "unit") else "right")
    for each in accounts:
        runs = each["runs"]
        table.add_row(
            each["silo"], each["data_version"][:12], str(len(runs)), str(sum(run["state"] == "open" for run in runs)),
            str(sum(run["releases"] for run in runs)), _number(each["epsilon_charged"]), _number(each["epsilon_spent"]),
            "none" if each["delta"] is None else f"{each['delta']:.3g}", (each["unit"] or "none").split()[0],
            _number(each["epsilon_whole_silo"]),
        )  # fmt: skip
    out = Terminal(highlight=False)
    out.print(table)
    if silo is not None:
        out.print(_runs(accounts))
        for each in accounts:
            for line in _policies(each):
                out.print(line, markup=False, soft_wrap=True)
    for unit in dict.fromkeys(each["unit"] for each in accounts if each["unit"] not in (None, "records")):
        whose = ", ".join(each["silo"] for each in accounts if each["unit"] == unit)
        out.print(f"{unit}, each with all of its rows: {whose}", markup=False, soft_wrap=True)
    for line in _registered(accounts):
        out.print(line, markup=False, soft_wrap=True)
    out.print("charged: closed runs as they were spent, open ones in full, which a cap counts; spent: releases so far.")
    out.print("whole silo: releases so far, for all records replaced; none where it is not known exactly.")


@app.command()
def verify(
    silo: Silo = None,
    as_json: AsJson = False,
    head: Annotated[
        str | None, typer.Option(help="the register's head that `budget show` printed, as it was written down")
    ] = None,
) -> None:
    """Checks chain, anchor, bytes and keys of each ledger, and the register against them; exit status 1 if one of them
    is not whole."""
    from fedcore.errors import SiloError
    from fedcore.ledger.verify import faults

    found = _register_faults(silo, head)
    known = {(each["silo"], each["data_version"]) for each in found}
    here = _home().ledger_folders.found(silo) if found else _found(silo)
    for version, name in here:
        if (name, version) in known:
            continue
        try:
            said = faults(name, *_home().ledger_folders.of(version, name))
        except SiloError as error:
            said = [error.sentence]
        found.append({"silo": name, "data_version": version, "faults": said})
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        out = Terminal(highlight=False, soft_wrap=True)
        for each in found:
            for sentence in each["faults"] or ["whole"]:
                out.print(f"silo {each['silo']} ({str(each['data_version'])[:12]}): {sentence}", markup=False)
    if any(each["faults"] for each in found):
        raise typer.Exit(1)


@app.command()
def export(silo: Silo = None) -> None:
    """All events as JSON, with addresses and digests and without released values, for a third party's accountant."""
    from fedcore.ledger.account import export as exported
    from fedcore.ledger.operator.statement import statement

    accounts = []
    for version, name in _found(silo):
        with _opened(version, name) as ledger:
            accounts.append(exported(ledger) | {"account": statement(_register(), name)})
    print(json.dumps(accounts, indent=1))


@app.command()
def close(run: Annotated[str, typer.Argument(help="a run that will not be resumed")], silo: Silo = None) -> None:
    """Ends a run for good, which gives back what it was charged and did not spend. It cannot be resumed afterwards."""
    from fedcore.accounting.composition import worst_mu_squared
    from fedcore.errors import InputError

    closed = []
    for version, name in _found(silo):
        with _held(version, name) as ledger:
            if ledger.is_run(run) and not ledger.is_closed(run):
                ledger.close_run(run, worst_mu_squared(ledger.events(run)))
                closed.append(name)
    if not closed:
        raise InputError(f"no ledger here has an open run {run}; `fedcore budget show --json` lists runs")
    console.say(f"run {run} is closed at {len(closed)} silos: {', '.join(closed)}")


@app.command()
def reconcile(silo: Annotated[str, typer.Argument(help="the silo whose ledger does not fit its anchor")]) -> None:
    """After a lost tail or a restored copy: charges open runs in full, and what the anchor knows of and is lost."""
    from fedcore.errors import InputError, SiloError
    from fedcore.ledger.sqlite import SqliteLedger

    done = []
    if (register := _register()) is not None and register.accounts.find(silo) is not None:
        from fedcore.ledger.operator.repair import reconcile as repaired
        from fedcore.silo.policies.policy_in_force import utc_now

        done = repaired(register, silo, utc_now)
    for version, name in _unregistered(silo):
        path, anchor = _home().ledger_folders.of(version, name)
        try:
            SqliteLedger(name, path, anchor).close()
            continue
        except SiloError as error:
            if error.code != "ledger-lost":
                raise
        ledger = SqliteLedger(name, path, anchor, fitting=False)
        try:
            runs, lost = ledger.reconcile()
        finally:
            ledger.close()
        added = f"mu^2 {lost.mu_squared:.6g}, epsilon {lost.epsilon:.6g}, delta {lost.delta:.3g}"
        done.append(f"silo {name}: closed in full: {', '.join(runs) or 'no run was open'}; charged as lost: {added}")
    if not done:
        raise InputError(f"silo {silo}: its ledger fits its anchor; there is nothing to reconcile")
    for line in done:
        console.say(line)


@app.command()
def migrate(
    silo: Annotated[str, typer.Argument(help="the silo whose ledger an older version made")],
    delta: Annotated[float | None, typer.Option(help="for a ledger of version 1, which states none")] = None,
) -> None:
    """Carries the charges of an older version's ledger over, each run closed in full; the older file is kept."""
    from fedcore.errors import InputError
    from fedcore.ledger.database import VERSION
    from fedcore.ledger.migration import migrate as carried_over
    from fedcore.ledger.migration import version_of

    done = []
    for version, name in _found(silo):
        path, anchor = _home().ledger_folders.of(version, name)
        if path.is_file() and version_of(path) != VERSION:
            _check_unknown(name, version)
            runs = carried_over(name, path, anchor, delta)
            total = math.fsum(run.charge.mu_squared for run in runs)
            done.append(f"silo {name}: {len(runs)} runs closed in full, mu^2 {total:.6g} in all; {path} is verified")
    if not done:
        raise InputError(f"silo {silo}: its ledger has version {VERSION} already")
    for line in done:
        console.say(line)


def _runs(accounts: list[dict[str, Any]]) -> Any:
    """A table of one silo's runs by phase."""
    from flows.reports.table import plain_table

    table = plain_table()
    units = dict.fromkeys(each["unit"].split()[0] for each in accounts if each["unit"] is not None)
    for head in ("run", "state", "phase", "rounds", " or ".join(units) or "records", "charged", "spent"):
        table.add_column(head, justify="left" if head in ("run", "state") else "right")
    for run in (run for each in accounts for run in each["runs"]):
        whole = (_number(run[key]) for key in ("epsilon_charged", "epsilon_spent"))
        table.add_row(run["run"], run["state"], "all", "", "", *whole)
        for phase in run["phases"]:
            cells = str(phase["phase"]), _ranges(phase["rounds"]), "-".join(map(str, phase["records"]))
            table.add_row("", "", *cells, "", _number(phase["epsilon_spent"]))
    return table


def _policies(account: dict[str, Any]) -> list[str]:
    """A line for each policy that a ledger has recorded, the last one in full."""
    lines = [f"entry {each['entry']}: policy {each['sha256'][:12]}, replaced" for each in account["policies"][:-1]]
    for each in account["policies"][-1:]:
        held = json.dumps(each["policy"], sort_keys=True)
        lines.append(f"entry {each['entry']}: policy {each['sha256'][:12]}, recorded last: {held}")
    return lines


def _ranges(numbers: list[int]) -> str:
    """Ascending numbers with runs of them as `first-last`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)


def _home() -> Any:
    from fedcore.home import Home

    return Home.current().check()


def _found(silo: str | None) -> list[tuple[str, str]]:
    """(version, silo) of the ledgers that are here. Raises InputError if there are none."""
    from fedcore.errors import InputError

    found = _home().ledger_folders.found(silo)
    if not found:
        whose = "durable ledger" if silo is None else f"durable ledger of a silo {silo!r}"
        raise InputError(f"{_home().ledgers} holds no {whose}; runs with privacy.ledger = sqlite make one")
    return list(found)


@contextmanager
def _opened(version: str, silo: str) -> Iterator[SqliteLedger]:
    """The ledger, closed again after the block. Raises SiloError if it is held, lost or damaged."""
    from fedcore.ledger.sqlite import SqliteLedger

    ledger = SqliteLedger(silo, *_home().ledger_folders.of(version, silo))
    try:
        yield ledger
    finally:
        ledger.close()


def _register() -> Register | None:
    """The register of this machine's operator; None if there is none. Raises SiloError if it is damaged."""
    from fedcore.ledger.operator.register import Register

    register = Register.current("register")
    return register if register.known else None


@contextmanager
def _held(version: str, silo: str) -> Iterator[SqliteLedger]:
    """As `_opened`, of a registered silo with its account, which learns what is changed."""
    from fedcore.ledger.operator.registered import RegisteredLedger
    from fedcore.silo.policies.policy_in_force import utc_now

    register = _register()
    if register is None or not _is_registered(register, silo, version):
        with _opened(version, silo) as ledger:
            yield ledger
        return
    registered = RegisteredLedger(register, silo, version, utc_now)
    try:
        yield registered
    finally:
        registered.close()


def _is_registered(register: Register, silo: str, version: str) -> bool:
    """Whether this home's ledger is the one that the register has for a silo's version."""
    account = register.accounts.find(silo)
    known = None if account is None else account.versions.get(version)
    return known is not None and known.ledger == os.path.realpath(_home().ledger_folders.of(version, silo)[0])


def _unregistered(silo: str) -> list[tuple[str, str]]:
    """(version, silo) of the ledgers of this home that no register knows. Raises InputError if there is no ledger."""
    register = _register()
    if register is None:
        return _found(silo)
    known = register.accounts.find(silo) is not None
    found = list(_home().ledger_folders.found(silo)) if known else _found(silo)
    return [(version, name) for version, name in found if not _is_registered(register, name, version)]


def _check_unknown(silo: str, version: str) -> None:
    """Raises InputError for a file that lies where a registered ledger was: those are of this version."""
    from fedcore.errors import InputError

    register = _register()
    if register is not None and _is_registered(register, silo, version):
        path = _home().ledger_folders.of(version, silo)[0]
        raise InputError(f"{path} is not the ledger that the register knows: restore that, nothing is migrated")


def _register_faults(silo: str | None, head: str | None) -> list[dict[str, Any]]:
    """What is wrong with the register, and with its accounts against their ledgers. Raises InputError without one."""
    from fedcore.errors import InputError, SiloError
    from fedcore.ledger.operator.register_check import faults as register_faults

    try:
        register = _register()
    except SiloError as error:
        return [{"silo": "register", "data_version": "", "faults": [error.sentence]}]
    if register is None:
        if head is not None:
            raise InputError("there is no register here to compare a head with")
        return []
    return [
        {"silo": name, "data_version": version, "faults": said}
        for name, version, said in register_faults(register, silo, head)
    ]


def _registered(accounts: list[dict[str, Any]]) -> list[str]:
    """Lines about the accounts of registered silos, and the register's head."""
    found = {each["silo"]: each["account"] for each in accounts if each["account"] is not None}
    lines = []
    for silo, account in found.items():
        of = f"{len(account['data_versions'])} data version(s), {account['runs']} run(s)"
        charged = f"epsilon {_number(account['epsilon_charged'])} charged at delta {account['delta']:.3g}"
        lines.append(f"account of silo {silo}, all versions of its data: {of}, {charged}")
        lines += [f"  entry {said['entry']}: {said['declared']}" for said in account["declared"]]
    if found:
        head = next(iter(found.values()))["head"]
        lines.append(f"register: head {head}; write it down elsewhere, `fedcore budget verify --head` compares")
    return lines


def _number(value: float | None) -> str:
    return "none" if value is None else rounded_up(value, 5)
