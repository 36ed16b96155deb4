"""`silo pin | unpin`: the keys of other silos, as this silo's operator has confirmed them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.arguments import console
from flows.commands.federations.decisions import Silo


def pin(
    file: Annotated[Path, typer.Argument(help="another silo's card, or its rotation")],
    fingerprint: Annotated[str | None, typer.Option(help="that silo's, as its operator reads it to you")] = None,
    silo: Silo = None,
) -> None:
    """Pin the keys of another silo of the federation, after its fingerprint was compared."""
    from fedcore.home import Home
    from fedcore.remote.membership import Membership
    from flows.commands.federations.fingerprints import confirm

    roster = Membership.of(Home.current(), silo).roster
    joining = roster.read(file)
    confirm(joining.card.keys, f"silo {joining.card.name}", fingerprint)
    roster.pin(joining)
    console.print_plain(f"{joining.card.name} is pinned: what silos seal to each other is sealed to these keys")


def unpin(name: Annotated[str, typer.Argument(help="a silo whose keys were pinned")], silo: Silo = None) -> None:
    """Forget the keys of another silo."""
    from fedcore.home import Home
    from fedcore.remote.membership import Membership

    Membership.of(Home.current(), silo).roster.unpin(name)
    console.print_plain(f"{name} is pinned no more")
