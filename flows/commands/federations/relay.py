"""`relay`: the process that keeps envelopes between driver and silos, and reads none of them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.arguments import console
from flows.commands.typed_numbers import whole


def relay(
    invitation: Annotated[Path, typer.Argument(help="the federation's invitation")],
    fingerprint: Annotated[str | None, typer.Option(help="the coordinator's, as it reads it to you")] = None,
    host: Annotated[str, typer.Option(help="address to listen on; 0.0.0.0: all of this machine's")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any free one", **whole(0, 65535))] = 8500,
    home: Annotated[
        Path | None, typer.Option(help="folder of its envelopes; default: relay in the home of this machine")
    ] = None,
    name: Annotated[
        list[str] | None, typer.Option(help="a host name by which parties call it; may be repeated")
    ] = None,
    certificate: Annotated[Path | None, typer.Option(help="PEM file for https, with --private-key")] = None,
    private_key: Annotated[Path | None, typer.Option(help="PEM file of the certificate's key")] = None,
) -> None:
    """Carry sealed envelopes for the federation of INVITATION, until Ctrl-C. It needs no secret of anybody."""
    from urllib.parse import urlsplit

    from fedcore.errors import InputError
    from fedcore.home import Home
    from fedcore.identity.invitation import Invitation
    from flows.carriers.http import listening
    from flows.carriers.relay import serve
    from flows.commands.federations.fingerprints import confirm

    if (certificate is None) != (private_key is None):
        raise InputError("--certificate and --private-key are given together, or not at all")
    pair = None if certificate is None or private_key is None else (certificate, private_key)
    found = Invitation.read(invitation)
    current = Home.current()
    if not (current.federations / found.name / "coordinator.keys").exists():  # elsewhere than at the coordinator
        confirm(found.coordinator, f"the coordinator of {found.name}", fingerprint)
    folder = current.make().relay / found.federation[:16] if home is None else home.absolute()
    address = urlsplit(found.relay)
    # With its port, too: a proxy that ends TLS at another port than the relay's passes on what its callers wrote.
    names = (*(name or ()), address.hostname or "localhost", address.netloc.lower())
    with listening(host, port) as socket:
        scheme, at = "http" if pair is None else "https", socket.getsockname()[1]
        ready = f"relay of {found.name} at {scheme}://{host}:{at}; Ctrl-C ends it"
        with contextlib.suppress(KeyboardInterrupt):
            serve(
                folder,
                socket,
                found.coordinator,
                found.federation,
                names,
                certificate=pair,
                ready=lambda: console.print(ready, highlight=False, soft_wrap=True),
            )
