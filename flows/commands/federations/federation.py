"""`federation`: the coordinator's commands. It makes a federation, takes silos' cards, and lists who is here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.commands.arguments import AsJson, console, write_new_output

app = typer.Typer(name="federation", no_args_is_help=True, help="Coordinate silos that are services elsewhere.")

Name = Annotated[str, typer.Argument(help="the federation's name")]


@app.command()
def init(
    name: Name,
    relay: Annotated[str, typer.Option(help="address at which silos and driver reach the relay")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="default: NAME.invitation")] = None,
) -> None:
    """Make the federation NAME: its keys, and an invitation for silos and for `fedcore relay`."""
    from fedcore.errors import InputError
    from fedcore.home import Home
    from tasks.relay.federation import Federation

    path = output or Path(f"{name}.invitation")
    if path.exists():
        raise InputError(f"{path} is there already; name another file with --output")
    made = Federation.new(Home.current().make(), name, relay)
    write_new_output(path, made.invitation.text(made.identity))
    console.print_plain(f"{path}: for every silo, and for `fedcore relay {path}`; its relay is {made.invitation.relay}")
    console.print_plain(f"fingerprint of the coordinator, to read to each silo: {made.identity.public.fingerprint}")


@app.command()
def add(
    file: Annotated[Path, typer.Argument(help="what `fedcore silo card` or `silo rotate` wrote")],
    fingerprint: Annotated[str | None, typer.Option(help="the silo's, as its operator reads it to you")] = None,
) -> None:
    """Take the silo of a card into the federation that it names, or a silo's new keys; compares its fingerprint."""
    from fedcore.data.federations.rotation import read_joining
    from fedcore.home import Home
    from flows.commands.federations.fingerprints import confirm
    from tasks.relay.federation import Federation

    joining = read_joining(file)
    facts = joining.card
    found = Federation.of_id(Home.current(), facts.federation)
    found.check(facts, joining.replaces)
    preparation = facts.preparation
    unit = "records" if preparation.person is None else f"persons (column {preparation.person!r})"
    console.print_plain(f"silo {facts.name}: {facts.records} {unit}, fedcore {facts.fedcore}")
    console.print_plain(f"columns {', '.join(preparation.column_names)}; label {preparation.label}")
    confirm(facts.keys, f"silo {facts.name}", fingerprint)
    found.add(joining)
    _tell_relay(found)
    done = "has joined" if joining.replaces is None else "has new keys in"
    console.print_plain(f"{facts.name} {done} {found.invitation.name}")


@app.command()
def remove(
    name: Name, silo: Annotated[str, typer.Argument(help="a silo, whose keys count no more from now on")]
) -> None:
    """Remove SILO from the federation NAME; the relay ends its session and deletes what waits for it."""
    from fedcore.home import Home
    from tasks.relay.federation import Federation

    found = Federation.of(Home.current(), name)
    found.remove(silo)
    _tell_relay(found)
    console.print_plain(f"{silo} is removed from {name}")


@app.command()
def revoke(name: Name, silo: Annotated[str, typer.Argument(help="a silo, whose keys never count again")]) -> None:
    """Remove SILO from the federation NAME, and refuse its present keys for good: they were stolen, or may be."""
    from fedcore.home import Home
    from tasks.relay.federation import Federation

    found = Federation.of(Home.current(), name)
    found.remove(silo, revokes=True)
    _tell_relay(found)
    console.print_plain(f"{silo} is removed from {name}, and its keys are refused for good")


@app.command("list")
def list_(name: Name, as_json: AsJson = False) -> None:
    """List the silos of the federation NAME: facts, keys, and when each last asked the relay for work."""
    from fedcore.errors import RelayError
    from fedcore.home import Home
    from fedcore.relay.relay import Seen
    from flows.driver.federated import relay_of
    from tasks.relay.federation import Federation

    found = Federation.of(Home.current(), name)
    seen: dict[str, Seen] = {}
    fault: str | None = None
    try:
        seen = relay_of(found).seen()
    except (RelayError, ValueError) as error:
        fault = str(error)
    rows: list[dict[str, Any]] = []
    for card in found.cards:
        each = seen.get(card.name)
        rows.append(
            {
                "silo": card.name,
                "records": card.records,
                "fedcore": card.fedcore,
                "fingerprint": card.keys.fingerprint,
                "seconds_ago": None if each is None or each.ago is None else round(each.ago, 1),
                "waiting": None if each is None else each.waiting,
            }
        )
    if as_json:
        print(
            json.dumps({"federation": name, "relay": found.invitation.relay, "fault": fault, "silos": rows}, indent=2)
        )
        return
    console.print_plain(f"federation {name}, relay {found.invitation.relay}{f': {fault}' if fault else ''}")
    for row in rows:
        ago = "not yet seen" if row["seconds_ago"] is None else f"seen {row['seconds_ago']:g} s ago"
        waiting = f", {row['waiting']} envelopes wait for it" if row["waiting"] else ""
        console.print_plain(
            f"{row['silo']}: {row['records']} records, fedcore {row['fedcore']}, {ago}{waiting}, {row['fingerprint']}"
        )
    if not rows:
        console.print_plain("no silo has joined; `fedcore federation add FILE` takes a card")


def _tell_relay(federation: Any) -> None:
    """Gives the relay the new list; without it, the next run does."""
    from fedcore.errors import InputError
    from flows.driver.federated import relay_of

    try:
        relay_of(federation)
    except InputError as error:
        console.print_plain(f"{error}; it gets the list with the next command that reaches it")
