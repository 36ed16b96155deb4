"""`fedcore budget register | clock`: an operator's entries in the register, and its faults."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from fedcore.printable import on_terminal
from flows.commands.accounts.budget_ledgers import known_register
from flows.commands.arguments import AsJson, Config, console

DISJOINT = "disjoint"


def register(
    config: Config,
    silos: Annotated[list[str] | None, typer.Argument(help="only these silos of the config; else all")] = None,
    new: Annotated[bool, typer.Option("--new", help="silos that have no account get one")] = False,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="a value over the file's, as --set seed=1; may be repeated")
    ] = None,
) -> None:
    """Register the silos of CONFIG, an experiment or a sweep, or new versions of their data.

    A guarded silo answers only with an account in the register, which counts all runs over all versions of its data.
    A silo's first version needs --new, and takes over every ledger that the silo has in this home. A later version
    shares the account. At the prompt the operator can declare that none of its persons is in an earlier version.
    """
    from fedcore.errors import InputError
    from fedcore.experiment.sweep import load_cells
    from fedcore.home import Home
    from fedcore.silo.policies.policy_in_force import utc_now
    from fedcore.silo.registration import register_silos
    from flows.commands.accounts.sources import sources_of_cells

    home = Home.current().make()
    found = sources_of_cells(load_cells(config, overrides or ()), home.silos)
    known = list(dict.fromkeys(source.name for sources in found for source in sources))
    named = silos or known
    if unknown := sorted(set(named) - set(known)):
        raise InputError(f"{config} has no silo {unknown[0]!r}; it has {', '.join(known)}")
    for sources in found:  # of a sweep whose cells differ in their data, each silo's versions one after the other
        wanted = [source for source in sources if source.name in named]
        for line in register_silos(wanted, home.ledger_folders, new, _declared_disjoint, utc_now) if wanted else ():
            print(line)
    console.print_plain(
        "`fedcore budget show` prints the accounts' charges, and the register's head to write down elsewhere"
    )


def clock(
    silo: Annotated[str, typer.Argument(help="a silo of the register")],
    confirm: Annotated[bool, typer.Option("--confirm", help="record this machine's time as the latest")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the latest recorded time of SILO's clock; --confirm sets it to this machine's time.

    A policy expires by the latest recorded time, so a clock that is set back does not revive an expired policy. If that
    time is wrong or more than a day ahead, --confirm sets it to this machine's time, forward or back. The change is an
    entry of the register, which `fedcore budget show` prints.
    """
    import json

    from fedcore.errors import InputError
    from fedcore.ledger.operator.accounts import time_text
    from fedcore.ledger.operator.register import Draft, Register
    from fedcore.silo.policies.policy_in_force import utc_now

    register = Register.current(silo)
    account = register.accounts.find(silo)
    if account is None:
        raise InputError(f"silo {silo} has no account in the register {register.folder}")
    now = utc_now()
    if confirm:
        register.append([Draft("clock", account.silo, "", {"to": now.isoformat()})])
        account = register.accounts.find(silo) or account
    ahead = None if account.ahead is None else time_text(account.ahead)
    if as_json:
        times = {"latest": time_text(account.latest), "ahead": ahead, "now": time_text(now)}
        print(json.dumps({"silo": account.silo, **times}))
        return
    latest = time_text(account.latest)
    console.print_plain(f"silo {account.silo}: latest recorded time {latest}, this machine's clock {time_text(now)}")
    if ahead is not None:
        console.print_plain(
            f"its clock has also shown {ahead}, more than a day after that; `fedcore budget clock {silo} --confirm` "
            "records this machine's time instead"
        )


def register_faults(silo: str | None, head: str | None) -> list[dict[str, Any]]:
    """Faults of the register, and of its accounts against their ledgers. Raises InputError for a head without one."""
    from fedcore.errors import InputError, SiloError
    from fedcore.ledger.operator.register_check import faults as register_faults

    try:
        register = known_register()
    except SiloError as error:
        return [{"silo": "register", "data_version": "", "faults": [error.sentence]}]
    if register is None:
        if head is not None:
            raise InputError("there is no register here to compare a head with")
        return []
    return [
        {"silo": name, "data_version": version, "faults": sentences}
        for name, version, sentences in register_faults(register, silo, head)
    ]


def _declared_disjoint(silo: str, version: str) -> bool:
    """Asks the operator to declare that persons are disjoint; a script or file cannot declare it."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    console.print_plain(
        f"silo {silo}: data version {version[:12]} is a further one. It shares the account of the earlier ones, unless "
        "no person in it is in any of them. Who declares that answers for it: nothing can check it, and every "
        "statement prints it."
    )
    prompt = f"Type `{DISJOINT} {silo}` to declare it, anything else to share the account: "
    return input(on_terminal(prompt)).strip() == f"{DISJOINT} {silo}"
