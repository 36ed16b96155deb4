"""`shuffler`: the process between silos and server that hides which silo sent which message."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from fedcore.errors import InputError
from flows.commands.arguments import console
from flows.commands.typed_numbers import whole


def shuffler(
    host: Annotated[str, typer.Option(help="address to listen on; 0.0.0.0: all of this machine's")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any free one", **whole(0, 65535))] = 8400,
    home: Annotated[
        Path | None, typer.Option(help="folder of its batches; default: shuffler in the home of this machine")
    ] = None,
    minimum: Annotated[
        int, typer.Option(min=2, help="smallest batch that is handed on; a run can ask for more, not for less")
    ] = 2,
    certificate: Annotated[Path | None, typer.Option(help="PEM file for https, with --private-key")] = None,
    private_key: Annotated[Path | None, typer.Option(help="PEM file of the certificate's key")] = None,
    secret: Annotated[
        Path | None, typer.Option(help="file with one line, the secret of callers: shuffler.secret of their runs")
    ] = None,
) -> None:
    """Permute sealed messages for runs whose `shuffler.address` names this process, until Ctrl-C."""
    from fedcore.home import Home
    from flows.carriers.http import listening, reaches_others
    from flows.carriers.shuffler import serve
    from flows.carriers.shuffler_secret import shuffler_secret

    if (certificate is None) != (private_key is None):
        raise InputError("--certificate and --private-key are given together, or not at all")
    pair = None if certificate is None or private_key is None else (certificate, private_key)
    known = None if secret is None else shuffler_secret("--secret", secret)
    folder = Home.current().shuffler if home is None else home.absolute()
    with listening(host, port) as socket:
        if known is None and reaches_others(socket):
            raise InputError(
                f"--host {host} lets other machines call this shuffler: give --secret FILE, of one line that runs "
                "know by shuffler.secret, or listen on 127.0.0.1"
            )
        scheme, at = "http" if pair is None else "https", socket.getsockname()[1]
        ready = f"shuffler at {scheme}://{host}:{at}, batches of at least {minimum} messages; Ctrl-C ends it"
        with contextlib.suppress(KeyboardInterrupt):
            serve(
                folder,
                socket,
                minimum,
                pair,
                secret=known,
                ready=lambda: console.print(ready, highlight=False, soft_wrap=True),
            )
