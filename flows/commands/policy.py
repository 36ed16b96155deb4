"""`fedcore policy check | show`: a silo operator's policy, by its file and by the ledgers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedcore.directed_rounding import in_full
from flows.commands.arguments import console

if TYPE_CHECKING:
    from fedcore.silo.policies.policy import Policy

app = typer.Typer(
    name="policy",
    no_args_is_help=True,
    help="Policies of silos' operators: files in FEDCORE_HOME/policies (or FEDCORE_POLICIES). A guarded silo "
    "(`privacy.noise: guarded`) without a policy answers nothing; conf/policy has an example with every key explained.",
)

AsJson = Annotated[bool, typer.Option("--json", help="print only JSON on standard output")]


@app.command()
def check(file: Annotated[Path, typer.Argument(help="a policy, in force or not")], as_json: AsJson = False) -> None:
    """Show what a policy would allow, or all of its faults, key by key (exit code 2)."""
    from fedcore.silo.policies.policy_file import read_policy

    policy = read_policy(file)
    if as_json:
        print(json.dumps({"sha256": policy.digest, **policy.model_dump(mode="json")}, indent=2))
    else:
        _print(policy)


@app.command()
def show(silo: Annotated[str, typer.Argument(help="name of a silo of this machine")], as_json: AsJson = False) -> None:
    """Show the policy in force for SILO, and the policies that its ledgers have recorded."""
    from fedcore.data.tabular import SILO_NAME
    from fedcore.errors import InputError
    from fedcore.home import Home
    from fedcore.silo.policies.policy_file import policy_path, read_policy

    if SILO_NAME.fullmatch(silo) is None:
        letters = "letters, digits, '_', '.' and '-', a letter or digit first"
        raise InputError(f"no silo can be called {silo!r}: a name is of {letters}")
    folder = Home.current().policies
    try:
        path = policy_path(silo)
    except (OSError, ValueError) as error:
        raise InputError(f"the policy of silo {silo!r} in {folder} cannot be read: {error}") from None
    policy = None if path is None else read_policy(path)
    recorded = _recorded(silo)
    if as_json:
        held = None if policy is None else {"sha256": policy.digest, **policy.model_dump(mode="json")}
        print(json.dumps({"silo": silo, "file": path and str(path), "policy": held, "recorded": recorded}, indent=2))
        return
    if policy is None:
        console.print_plain(f"silo {silo} has no policy in {folder}: it is opened as a simulated silo only")
    else:
        console.print_plain(f"silo {silo}: {path}")
        _print(policy)
    for version, policies in recorded.items():
        for each in policies:
            console.print_plain(f"ledger {version[:12]}, entry {each['entry']}: policy {each['sha256'][:12]}")
        if policy is not None and [each["sha256"] for each in policies][-1:] != [policy.digest]:
            console.print_plain(
                f"ledger {version[:12]}: the policy of the file is recorded when the silo is next opened"
            )


def _recorded(silo: str) -> dict[str, list[dict[str, Any]]]:
    """Policies that each ledger recorded, by data version. Raises SiloError for a held, lost or damaged ledger."""
    from fedcore.home import Home
    from fedcore.ledger.account import recorded_policies
    from fedcore.ledger.sqlite import SqliteLedger

    folders, found = Home.current().ledger_folders, {}
    for version, name in folders.found(silo):
        ledger = SqliteLedger(name, *folders.of(version, name))
        try:
            found[version] = recorded_policies(ledger)
        finally:
            ledger.close()
    return found


def _print(policy: Policy) -> None:
    from fedcore.planning.problem import unit_of
    from fedcore.silo.policies.policy_in_force import utc_now

    values: dict[str, Any] = policy.model_dump(mode="json")
    one = values["one_run"]
    console.print_plain(f"policy {policy.digest[:12]} allows")
    console.print_plain(f"  methods  {', '.join(values['methods'])}")
    console.print_plain(f"  losses   {', '.join(values['losses'])}")
    cap = policy.cap
    console.print_plain(f"  cap      epsilon {in_full(cap.epsilon)} at delta {cap.delta} over all runs ({cap.rule})")
    console.print_plain(f"  one run  {'as much as the cap has left' if one is None else _limit(one)}")
    if policy.person is not None:
        console.print_plain(f"  unit     {unit_of(policy.person)}, and no other")
    console.print_plain(f"  runs     at most {policy.runs}")
    console.print_plain(
        f"  expires  {values['expires']}{': it has, so nothing new' if policy.expired(utc_now()) else ''}"
    )


def _limit(one: dict[str, Any]) -> str:
    return f"epsilon at most {in_full(one['epsilon'])}, delta at most {one['delta']}"
