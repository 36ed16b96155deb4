"""`silo`: the commands of a silo's operator. It joins a federation, and answers for its records."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.commands.arguments import AsJson, console, write_new_output
from flows.commands.federations.decisions import approve, asked, pause, refuse
from flows.commands.federations.roster import pin, unpin

app = typer.Typer(
    name="silo", no_args_is_help=True, help="Join a federation with your own records, and answer for them."
)
for _command in (approve, refuse, pause, pin, unpin):
    app.command()(_command)

Silo = Annotated[str | None, typer.Argument(help="the silo, where several of this machine have joined")]


@app.command()
def init(
    name: Annotated[str, typer.Argument(help="the silo's name")],
    invitation: Annotated[Path, typer.Option(help="the file that the coordinator sent")],
    data: Annotated[Path, typer.Option(help="CSV or Parquet file of the silo's records")],
    label: Annotated[str | None, typer.Option(help="the label's column; else the last one")] = None,
    schema: Annotated[
        Path | None, typer.Option(help="YAML of the federation's columns; default: a draft by the file's columns")
    ] = None,
    fingerprint: Annotated[str | None, typer.Option(help="the coordinator's, as it reads it to you")] = None,
) -> None:
    """Make keys, schema, policy and account of the silo NAME, to be edited before `fedcore silo card`."""
    from fedcore.configfile.yaml_writer import yaml_text
    from fedcore.home import Home
    from fedcore.identity.invitation import Invitation
    from fedcore.remote.membership import SCHEMA, Membership
    from flows.commands.federations.fingerprints import confirm
    from flows.commands.federations.schema_draft import drafted, policy_text, schema_text

    found = Invitation.read(invitation)
    text = yaml_text(drafted(data, label)) if schema is None else schema_text(schema, label)
    confirm(found.coordinator, f"the coordinator of {found.name}", fingerprint)
    home = Home.current().make()
    made = Membership.new(home, name, invitation, data, text)
    policy = home.policies / f"{name}.yaml"
    if not policy.exists():
        home.policies.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_new_output(policy, policy_text())
    console.print_plain(f"edit {made.folder / SCHEMA}: what is publicly known of each column")
    console.print_plain(f"edit {policy}: which runs the silo allows, and how much they may spend")
    console.print_plain(f"then `fedcore silo card {name}` checks both, and writes the file for the coordinator")


@app.command()
def card(
    name: Silo = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="default: NAME.card")] = None,
) -> None:
    """Check the silo's records, schema and policy; give it its account; write its card for the coordinator."""
    from fedcore.data.inspection import inspected
    from fedcore.errors import InputError
    from fedcore.home import Home
    from fedcore.ledger.operator.register import Register
    from fedcore.remote.membership import Membership
    from fedcore.silo.policies.policy_file import policy_path, read_policy
    from fedcore.silo.policies.policy_in_force import utc_now
    from fedcore.silo.registration import register_silos

    home = Home.current()
    found = Membership.of(home, name)
    path = output or Path(f"{found.name}.card")
    if path.exists():
        raise InputError(f"{path} is there already; name another file with --output")
    source = found.source(home)
    seen = inspected(source)
    for sentence in (*seen.faults, *seen.doubts, *(f"note: {note}" for note in seen.notes)):
        console.print_plain(sentence)
    if seen.faults:
        raise InputError(f"{source.path} does not fit {found.folder / 'schema.yaml'}")
    policy = policy_path(found.name)
    if policy is None:
        raise InputError(f"silo {found.name} has no policy in {home.policies}")
    read_policy(policy)
    register = Register.current(found.name)
    new = register.accounts.find(found.name) is None
    for line in register_silos([source], home.ledger_folders, new, lambda silo, version: False, utc_now):
        console.print_plain(line)
    text = found.card(home).text(found.identity)
    found.keep_card(text)
    write_new_output(path, text)
    console.print_plain(f"{path}: send it to the coordinator; it holds public facts and public keys")
    console.print_plain(
        f"fingerprint of silo {found.name}, to read to the coordinator: {found.identity.public.fingerprint}"
    )


@app.command()
def serve(name: Silo = None) -> None:
    """Answer the federation's questions, until Ctrl-C. It dials out to the relay, and listens on nothing."""
    from fedcore.home import Home
    from fedcore.remote.membership import NEXT, Membership
    from tasks.relay.client import RelayClient
    from tasks.relay.serving import serve as answer

    home = Home.current()
    found = Membership.of(home, name)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", handlers=[_Lines()])
    logging.getLogger("httpx").setLevel(logging.WARNING)

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt  # between any two steps: what was not committed was not sent

    signal.signal(signal.SIGTERM, stop)
    ends = threading.Event()
    with contextlib.suppress(KeyboardInterrupt):
        following: Membership | None = found
        while following is not None:
            found, invitation = following, following.invitation
            post = RelayClient(invitation.relay, invitation.federation, found.name, found.identity)
            with found.service(home) as service:
                console.print_plain(
                    f"silo {found.name} answers for {invitation.name} through {invitation.relay}; Ctrl-C ends it"
                )
                answer(service, post, ends, (found.folder / NEXT).exists)
            following = found.next()


@app.command()
def rotate(
    name: Silo = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="default: NAME.rotation")] = None,
) -> None:
    """Make new keys for the silo, and a file by which the coordinator takes them in place of the old ones."""
    from fedcore.errors import InputError
    from fedcore.home import Home
    from fedcore.remote.membership import Membership

    home = Home.current()
    found = Membership.of(home, name)
    path = output or Path(f"{found.name}.rotation")
    if path.exists():
        raise InputError(f"{path} is there already; name another file with --output")
    fresh, text = found.rotation(home)
    write_new_output(path, text)
    console.print_plain(f"{path}: send it to the coordinator; `fedcore silo serve` takes the new keys when it has")
    console.print_plain(f"new fingerprint of silo {found.name}, to read to the coordinator: {fresh.public.fingerprint}")


@app.command()
def show(name: Silo = None, as_json: AsJson = False) -> None:
    """Show the silo's federation, keys and account: what it agreed to, spent, and has left, by run."""
    from fedcore.home import Home
    from fedcore.remote.membership import Membership
    from fedcore.silo.policies.decisions import Decisions

    found = Membership.of(Home.current(), name)
    invitation, decisions = found.invitation, Decisions.of(found.name)
    waiting = [each.run for each in asked(decisions)]
    pinned = {card.name: card.keys.fingerprint for card in found.roster.cards}
    facts = {
        "silo": found.name,
        "federation": invitation.name,
        "relay": invitation.relay,
        "fingerprint": found.identity.public.fingerprint,
        "coordinator": invitation.coordinator.fingerprint,
        "data": found.data,
    }
    if as_json:
        print(json.dumps(facts | {"paused": decisions.paused, "undecided": waiting, "roster": pinned}, indent=2))
        return
    for key, value in facts.items():
        console.print_plain(f"{key}: {value}")
    for other, shown in pinned.items():
        console.print_plain(f"pinned: {other} {shown}")
    if decisions.paused:
        console.print_plain("paused: it answers nothing new until `fedcore silo pause --end`")
    for run in waiting:
        console.print_plain(f"run {run} waits for a decision: `fedcore silo approve {run}` shows its plan, or `refuse`")
    console.print_plain(f"`fedcore budget show {found.name}` prints its account by run, once `silo serve` has ended")


class _Lines(logging.StreamHandler[Any]):
    """One line an event on standard error; what arrives cannot break a line."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return "".join(each if each.isprintable() else "?" for each in text)
