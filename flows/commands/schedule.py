"""`schedule`: runs and sweeps at set times, by the deployments of `fedcore up`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedcore.errors import InputError
from fedcore.printable import plain_name
from flows.commands.arguments import AsJson, Config, Overrides, Yes, console
from flows.terminal.urgent import warn

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

    from fedcore.experiment.config import ExperimentConfig
    from flows.schedules.orders import Kind
    from flows.schedules.schedule import Schedule

app = typer.Typer(
    name="schedule",
    no_args_is_help=True,
    help="Run or sweep at set times, by the deployments of `fedcore up`. `orchestration.scheduled` of the config "
    "selects what a firing runs: what is not finished, or a new repetition.",
)

Name = Annotated[str, typer.Argument(help="a name that `schedule list` prints")]


@app.command()
def add(
    config: Config,
    overrides: Overrides = None,
    cron: Annotated[str | None, typer.Option(help='five fields, for instance "0 3 * * *": every day at 3:00')] = None,
    every: Annotated[str | None, typer.Option(help="an interval from now on, for instance 6h or 1d")] = None,
    timezone: Annotated[str, typer.Option(help="of --cron, for instance Europe/Berlin")] = "UTC",
    name: Annotated[str | None, typer.Option(help="of the schedule; default: the config's name")] = None,
    yes: Yes = False,
) -> None:
    """Schedule an experiment or a sweep, and show what each firing adds to silos' accounts."""
    from flows.schedules.adds import firing_adds
    from flows.schedules.schedule import When
    from flows.schedules.schedule import add as store

    if name is not None:
        plain_name(name, "--name")
    kind, of, parameters, cells, repeats = _loaded(config, overrides or [], yes)
    when = When.of(cron, every, timezone)
    with _prefect() as client:
        _check_data(cells)
        store(client, kind, name or of, when, parameters)
    warn(cells)
    following = ", ".join(f"{date:%F %H:%M %Z}" for date in when.dates(3))
    console.print(f"schedule {name or of}: {kind} {of}, {when.words}; next: {following}", highlight=False, markup=False)
    for sentence in firing_adds(cells, repeats):
        console.print(f"{sentence}.", highlight=False, markup=False)


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List all schedules, with the time of each one's next firing."""
    from flows.reports.table import plain_table
    from flows.schedules.schedule import schedules

    with _prefect() as client:
        found = schedules(client)
    if as_json:
        print(json.dumps([_as_json(each) for each in found], indent=2))
        return
    if not found:
        console.print('no schedules; `fedcore schedule add CONFIG --cron "0 3 * * *"` makes one', highlight=False)
        return
    table = plain_table()
    for head in ("schedule", "of", "when", "a firing does", "next"):
        table.add_column(head)
    for each in found:
        following = each.next()
        when = "a rule of Prefect's page" if each.when is None else each.when.words
        state = "paused" if not each.active else "-" if following is None else f"{following:%F %H:%M %Z}"
        does = "a new repetition" if each.repeats else "what is not finished"
        table.add_row(each.name, f"{each.kind} {each.of}", when, does, state)
    console.print(table)


@app.command()
def pause(name: Name) -> None:
    """Stop a schedule from firing until `schedule resume`. A run in progress continues."""
    _set_active(name, False)


@app.command()
def resume(name: Name) -> None:
    """Let a paused schedule fire again, even one that a silo's refusal has paused."""
    _set_active(name, True)


@app.command()
def remove(name: Name) -> None:
    """Delete a schedule. Runs that it started stay."""
    from flows.schedules.schedule import find
    from flows.schedules.schedule import remove as delete

    with _prefect() as client:
        delete(client, find(client, name))
    console.print(f"schedule {name} is removed", highlight=False, markup=False)


def _set_active(name: str, active: bool) -> None:
    from flows.schedules.schedule import find, set_active

    with _prefect() as client:
        schedule = find(client, name)
        set_active(client, schedule, active)
    following = schedule.when.dates(1)[0] if active and schedule.when is not None else None
    change = "is paused" if not active else "fires again" + (f": {following:%F %H:%M %Z}" if following else "")
    console.print(f"schedule {name} {change}", highlight=False, markup=False)


def _loaded(
    config: Path, overrides: list[str], yes: bool
) -> tuple[Kind, str, dict[str, Any], tuple[ExperimentConfig, ...], bool]:
    """Kind, name, parameters of the flow, cells, and `repeats`: each firing is a new repetition.

    Raises InputError as `run` and `sweep` do. A large firing is confirmed here, because no firing can ask.
    """
    from fedcore.experiment.loading import load_experiment
    from fedcore.experiment.sweep import is_sweep, load_sweep
    from fedcore.home import Home
    from flows.confirm import refuse_unless

    kind: Kind
    if is_sweep(config, overrides):
        sweep = load_sweep(config, overrides)
        cells, repeats = sweep.cells(str(config)), sweep.repeats
        if repeats:
            sweep.repeated(cells[0].repetition)
        kind, name, parameters = "sweep", sweep.name, sweep.model_dump(mode="json")
    else:
        experiment = load_experiment(config, overrides)
        cells, repeats = (experiment,), experiment.orchestration.scheduled == "repetition"
        kind, name, parameters = "run", experiment.name, experiment.model_dump(mode="json")
    refuse_unless(yes, Home.current(), cells)
    return kind, name, parameters, cells, repeats


def _check_data(cells: tuple[ExperimentConfig, ...]) -> None:
    """Raises InputError as `run` does for a plan or files that do not fit. Writes simulated silos.

    Called once the Prefect server of `fedcore up` has answered, so a refusal without it writes no silo.
    """
    from fedcore.experiment.statistics_run import check_all
    from fedcore.home import Home

    check_all(cells, Home.current().make().silos)


@contextmanager
def _prefect() -> Iterator[SyncPrefectClient]:
    """A client of the Prefect server of `fedcore up`. Raises InputError if it or its deployments are not running."""
    from fedcore.home import Home
    from flows.services.environment import prefect_environment, prefect_settings
    from flows.services.up_file import active_services, status
    from tasks.proxies import leave_out_unusable_proxies

    home = Home.current()
    api = (active_services(home) or {}).get("prefect")
    deployments = status(home).get("deployments")
    if api is None or deployments is None or not deployments["alive"]:
        raise InputError("`fedcore up` keeps and carries out schedules, and it is not up: start it, then call this")
    leave_out_unusable_proxies()
    os.environ.update(prefect_environment(home))
    from prefect.client.orchestration import get_client

    from flows.services.prefect_server import server_errors

    log = home.services / "prefect.log"
    with server_errors(log), prefect_settings(home, api), get_client(sync_client=True) as client:
        yield client


def _as_json(schedule: Schedule) -> dict[str, Any]:
    following = schedule.next()
    return {
        "name": schedule.name,
        "kind": schedule.kind,
        "of": schedule.of,
        "active": schedule.active,
        "when": None if schedule.when is None else schedule.when.as_json(),
        "scheduled": "repetition" if schedule.repeats else "unfinished",
        "next": None if following is None else following.isoformat(),
    }
