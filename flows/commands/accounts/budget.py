"""`fedcore budget`: spending of each silo, by its durable ledgers and its operator's register."""

from __future__ import annotations

import json
import math
from typing import Annotated

import typer

from fedcore.directed_rounding import shown_up
from flows.commands.accounts.budget_ledgers import (
    check_unknown,
    current_home,
    held_ledger,
    known_register,
    ledgers_found,
    opened_ledger,
    unregistered,
)
from flows.commands.accounts.budget_register import clock, register, register_faults
from flows.commands.accounts.budget_tables import account_lines, accounts_table, caps_lines, policy_lines, runs_table
from flows.commands.arguments import AsJson, console
from flows.commands.typed_numbers import real
from flows.terminal.console import Terminal

app = typer.Typer(
    name="budget",
    no_args_is_help=True,
    help="Spending of silos, by their durable ledgers (`privacy.ledger: sqlite`). Simulated silos with ledgers in "
    "memory are not listed: `fedcore report` shows their runs. A ledger that a run holds is refused.",
)

app.command()(register)
app.command()(clock)

Silo = Annotated[str | None, typer.Argument(help="only the silo of this name")]


@app.command()
def show(silo: Silo = None, as_json: AsJson = False) -> None:
    """Show runs, releases, charge and spending of silos; of one SILO, also each run by phase."""
    from fedcore.ledger.account import account
    from fedcore.ledger.operator.statement import statement

    accounts = []
    for version, name in ledgers_found(silo):
        with opened_ledger(version, name) as ledger:
            accounts.append(account(ledger) | {"account": statement(known_register(), name)})
    if as_json:
        print(json.dumps(accounts, indent=2))
        return
    out = Terminal(highlight=False)
    out.print(accounts_table(accounts))
    if silo is not None:
        out.print(runs_table(accounts))
        for each in accounts:
            for line in (*caps_lines(each), *policy_lines(each)):
                out.print(line, markup=False, soft_wrap=True)
    for unit in dict.fromkeys(each["unit"] for each in accounts if each["unit"] not in (None, "records")):
        names = ", ".join(each["silo"] for each in accounts if each["unit"] == unit)
        out.print(f"{unit}, each with all of its rows: {names}", markup=False, soft_wrap=True)
    for line in account_lines(accounts):
        out.print(line, markup=False, soft_wrap=True)
    out.print("charged: closed runs as they were spent, open ones in full, which a cap counts; spent: releases so far.")
    out.print("several runs are chosen over time: their mu^2 add up, as caps by gdp have it; a sample counts in full.")
    out.print("whole silo: releases so far, for all records replaced; none where it is not known exactly.")


@app.command()
def verify(
    silo: Silo = None,
    as_json: AsJson = False,
    head: Annotated[
        str | None, typer.Option(help="the register's head that `budget show` printed, as it was written down")
    ] = None,
) -> None:
    """Check chain, anchor, bytes and keys of each ledger, and the register against them. Exit code 1: a fault."""
    from fedcore.errors import SiloError
    from fedcore.ledger.storage.verify import faults

    found = register_faults(silo, head)
    known = {(each["silo"], each["data_version"]) for each in found}
    here = current_home().ledger_folders.found(silo) if found else ledgers_found(silo)
    for version, name in here:
        if (name, version) in known:
            continue
        try:
            sentences = faults(name, *current_home().ledger_folders.of(version, name))
        except SiloError as error:
            sentences = [error.sentence]
        found.append({"silo": name, "data_version": version, "faults": sentences})
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
    """Print all events as JSON for another accountant: addresses and digests, no released values."""
    from fedcore.ledger.account import export as exported
    from fedcore.ledger.operator.statement import statement

    accounts = []
    for version, name in ledgers_found(silo):
        with opened_ledger(version, name) as ledger:
            accounts.append(exported(ledger) | {"account": statement(known_register(), name)})
    print(json.dumps(accounts, indent=1))


@app.command()
def close(run: Annotated[str, typer.Argument(help="a run that will not be resumed")], silo: Silo = None) -> None:
    """End a run for good: its unspent charge is returned, and it cannot be resumed."""
    from fedcore.accounting.composition import worst_mu_squared
    from fedcore.errors import InputError
    from flows.run_lock import held_undriven

    closed: list[str] = []
    try:
        with held_undriven(current_home(), run):
            for version, name in ledgers_found(silo):
                with held_ledger(version, name) as ledger:
                    if ledger.is_run(run) and not ledger.is_closed(run):
                        ledger.close_run(run, worst_mu_squared(ledger.events(run)))
                        closed.append(name)
    except BaseException:
        if closed:
            console.print_plain(f"run {run} is closed at {', '.join(closed)}, and not at the silos after these")
        raise
    if not closed:
        raise InputError(f"no ledger here has an open run {run}; `fedcore budget show --json` lists runs")
    console.print_plain(f"run {run} is closed at {len(closed)} silos: {', '.join(closed)}")


@app.command()
def reconcile(silo: Annotated[str, typer.Argument(help="the silo whose ledger does not fit its anchor")]) -> None:
    """Repair a ledger that lost its tail or was restored: open runs and lost entries count in full."""
    from fedcore.errors import InputError, SiloError
    from fedcore.ledger.reconciliation import repair_summary
    from fedcore.ledger.sqlite import SqliteLedger

    done = []
    if (register := known_register()) is not None and register.accounts.find(silo) is not None:
        from fedcore.ledger.operator.repair import reconcile as repaired
        from fedcore.silo.policies.policy_in_force import utc_now

        done = repaired(register, silo, utc_now)
    for version, name in unregistered(silo):
        path, anchor = current_home().ledger_folders.of(version, name)
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
        done.append(f"silo {name}: {repair_summary(runs, lost)}")
    if not done:
        raise InputError(f"silo {silo}: its ledger fits its anchor; there is nothing to reconcile")
    for line in done:
        console.print_plain(line)


@app.command()
def migrate(
    silo: Annotated[str, typer.Argument(help="the silo whose ledger an older version made")],
    delta: Annotated[float | None, typer.Option(help="for a ledger of version 1, which states none", **real())] = None,
) -> None:
    """Move the charges of an older version's ledger to a new one, each run closed in full. The older file stays."""
    from fedcore.errors import InputError
    from fedcore.ledger.migration import migrate as carried_over
    from fedcore.ledger.migration import version_of
    from fedcore.ledger.storage.database import READ, VERSION

    done = []
    for version, name in ledgers_found(silo):
        path, anchor = current_home().ledger_folders.of(version, name)
        if path.is_file() and version_of(path) not in READ:
            check_unknown(name, version)
            runs = carried_over(name, path, anchor, delta)
            total = math.fsum(run.charge.mu_squared for run in runs)
            done.append(
                f"silo {name}: {len(runs)} runs closed in full, mu^2 {shown_up(total, 6)} in all; {path} is verified"
            )
    if not done:
        raise InputError(f"silo {silo}: its ledger has version {VERSION} already")
    for line in done:
        console.print_plain(line)
