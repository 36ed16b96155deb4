"""`up`, `down` and `password`: the services of this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.commands.arguments import console
from flows.commands.typed_numbers import whole

Workers = Annotated[int | None, typer.Option(help="Dask workers; default: one per core", **whole())]


def up(workers: Workers = None) -> None:
    """Start Prefect, MLflow and Dask on this machine for all later runs, until `fedcore down`."""
    from fedcore.home import Home
    from flows.services.machine import up as start

    with console.status("starting Prefect, MLflow, Dask and the deployments"):
        started = start(Home.current(), workers)
    console.print("already up" if started.already else "up; `fedcore down` ends it")
    for name, address in started.addresses.items():
        console.print(f"  {name:12} {address.removesuffix('/api')}", highlight=False)
    console.print("the pages ask for a user name and a password: `fedcore password` shows them", highlight=False)


def password(
    show: Annotated[bool, typer.Option("--show", help="print the password itself on standard output")] = False,
) -> None:
    """Show the user name of Prefect's and MLflow's pages, and the file that holds the password."""
    from fedcore.home import Home
    from flows.services.secret import USER, secret, secret_path

    home = Home.current()
    known = secret(home)  # made here, if nothing was up yet
    if show:
        print(known)
        return
    console.print(f"user {USER}; the password is the one line of {secret_path(home)}", highlight=False, soft_wrap=True)
    console.print("`fedcore password --show` prints it; whoever has it can start runs as you", highlight=False)


def down() -> None:
    """Stop the services of `fedcore up`, or the Prefect server that waits for the next run."""
    from fedcore.home import Home
    from flows.services.machine import down as stop

    ended = stop(Home.current())
    console.print(f"ended: {', '.join(ended)}" if ended else "nothing was up")
