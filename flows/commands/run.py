"""`run`, `sweep`, `resume`: the commands that train. Each imports the engines that it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fedcore.errors import InputError, SiloError
from flows.commands.arguments import AsJson, Config, Overrides, Yes, console, errors
from flows.commands.show import show_run, show_sweep
from flows.terminal.urgent import warn

if TYPE_CHECKING:
    from fedcore.home import Home
    from flows.runs import RunRecord


def run(config: Config, overrides: Overrides = None, as_json: AsJson = False, yes: Yes = False) -> None:
    """Train one model. The same parameters are the same run: a stopped one is resumed, a finished one is shown."""
    from fedcore.experiment.loading import load_experiment
    from flows.launch import launch_run

    experiment = load_experiment(config, overrides or [])
    warn([experiment])
    show_run(launch_run(experiment, console if not as_json else None, yes=yes), as_json)


def sweep(config: Config, overrides: Overrides = None, as_json: AsJson = False, yes: Yes = False) -> None:
    """Run every cell of a sweep that is not finished, then print its table and draw its plot."""
    from fedcore.experiment.sweep import load_sweep
    from flows.launch import launch_sweep

    loaded = load_sweep(config, overrides or [])
    warn(loaded.cells(str(config)))
    show_sweep(launch_sweep(loaded, console if not as_json else None, yes), as_json)


def resume(
    id: Annotated[str, typer.Argument(help="run or sweep id, or the beginning of one")], as_json: AsJson = False
) -> None:
    """Resume a run or sweep after any stop. Finished rounds are not run again; the result has the same bits."""
    from fedcore.experiment.identity import run_id
    from fedcore.home import Home
    from flows.launch import launch_run
    from flows.recorded.former_ids import refuse_former
    from flows.runs import find, read_run, refuse_if_damaged

    home = Home.current()
    name, kind = find(home, id)
    if kind == "sweep":
        _resume_sweep(home, name, as_json)
        return
    record = read_run(home, name)
    if record is None:
        refuse_if_damaged(home, name)
        raise InputError(f"run {name} stopped before its first checkpoint; start it again with `fedcore run CONFIG`")
    if record.result is None:
        refuse_former(record)
        warn([record.config])
        show_run(launch_run(record.config, console if not as_json else None, record.sweep, yes=True), as_json)
        return
    if not record.complete or run_id(record.config) == name:
        _complete_mlflow(home, record, record.sweep, as_json)
    show_run(record.result, as_json)


def _complete_mlflow(home: Home, record: RunRecord, sweep: str | None, as_json: bool) -> None:
    """Writes what MLflow lacks of a finished run, or prints why it cannot."""
    from flows.launch import launch_run
    from flows.recorded.former_ids import RecordedRuns
    from flows.runs import is_begun

    try:
        if (now := RecordedRuns(home).run(record.config)) != record.run:
            anew = f"its parameters were begun anew as {now}"
            raise InputError(anew if is_begun(home, now) else "other data are in the place of its own")
        launch_run(record.config, console if not as_json else None, sweep, yes=True)
    except (InputError, SiloError) as error:
        errors.print_plain(f"{record.run} is finished; what MLflow lacks of it cannot be written: {error}")


def _resume_sweep(home: Home, name: str, as_json: bool) -> None:
    """Resumes a sweep. A finished one of a former id is shown, after MLflow has received what it lacks of the cells.

    Raises InputError for an unfinished sweep of a former id.
    """
    from flows.launch import launch_sweep
    from flows.pages.links import is_missing
    from flows.sweep_files import (
        finished_results,
        is_decided,
        load_saved,
        recorded_runs,
        refuse_former_sweep,
        sweep_outcome,
    )

    config, shown = load_saved(home, name), console if not as_json else None
    runs = recorded_runs(home, name, config)
    if runs.former_sweep is None:
        if not is_decided(home, config, runs):
            warn(config.cells(name))
        show_sweep(launch_sweep(config, shown, yes=True), as_json)
        return
    if not is_decided(home, config, runs):
        refuse_former_sweep(home, config, runs)
    for cell in config.cells():
        if (record := runs.record(cell)) is not None and record.result is not None and not record.complete:
            _complete_mlflow(home, record, name, as_json)
    if is_missing(home, name, config.cells()):
        errors.print_plain(
            f"what MLflow lacks of sweep {name} itself cannot be written under its former id: its table is here"
        )
    show_sweep(sweep_outcome(home, config, finished_results(home, config, runs), runs), as_json)
