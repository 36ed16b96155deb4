"""`run`, `sweep`, `reproduce`, `resume`: what trains. Engines are imported where they are needed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedcore.errors import InputError, SiloError
from flows.commands.arguments import AsJson, Config, Overrides, Yes, console, errors
from flows.commands.show import show_ladders, show_run, show_sweep
from flows.terminal.urgent import warn

if TYPE_CHECKING:
    from fedcore.experiment.result import RunResult
    from fedcore.experiment.sweep import SweepConfig
    from fedcore.home import Home
    from flows.runs import RunRecord


def run(config: Config, overrides: Overrides = None, as_json: AsJson = False, yes: Yes = False) -> None:
    """Train one model. The same parameters are the same run: a stopped one goes on, a finished one is shown."""
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


def reproduce(
    paper: Annotated[str, typer.Argument(help="a folder of conf/paper, for instance localized")],
    overrides: Overrides = None,
    figure: Annotated[list[str] | None, typer.Option(help="only this figure of it; may be given several times")] = None,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Run the sweeps behind a paper's figures, from wherever they were stopped, and draw tables and plots."""
    from fedcore.home import Home
    from flows.confirm import not_begun, refuse_unless
    from flows.launch import launch_sweep
    from flows.reproductions.overview import write_overview
    from flows.reproductions.reproduction import choose, draw, largest, load_reproduction, load_trials

    home, drawn = Home.current(), dict[str, dict[str, Any]]()
    figures, left_out = load_reproduction(paper, home, overrides or [], figure or [])
    tried = {shown.name: load_trials(paper, shown, overrides or []) for shown, _ in figures}
    cells = [cell for shown, loaded in figures for cell in largest(shown, loaded, tried[shown.name])]
    refuse_unless(yes, home, not_begun(home, cells))
    warn(cells)
    for shown, loaded in figures:
        chosen: list[Any] = []
        if (trials := tried[shown.name]) is not None:
            results, failed = _tried(home, trials.sweep, as_json)
            loaded, chosen = choose(home, paper, shown, loaded, trials, results, failed)
        outcome = launch_sweep(loaded, console if not as_json else None, yes=True)
        folder = draw(home, paper, shown, loaded.cells(), outcome.results, chosen)
        drawn[shown.name] = {"folder": str(folder), "sweep": outcome.sweep, "statement": outcome.statement}
        drawn[shown.name] |= {key: value for key, value in outcome.as_json().items() if key in ("patience", "ladders")}
        if not as_json:
            over_epsilon = shown.table is None and not shown.curves
            what = f": {shown.points.metric}, mean and half width of its 95 % interval" if over_epsilon else ""
            console.print(f"\n{shown.title}{what}\n", highlight=False)
            console.print((folder / "table.md").read_text(), highlight=False, markup=False, soft_wrap=True)
            if (folder / "along.md").exists() and shown.along:
                console.print((folder / "along.md").read_text(), highlight=False, markup=False, soft_wrap=True)
            show_ladders(outcome)
            console.print(outcome.statement, highlight=False, markup=False)
            console.print(f"plot and tables: {folder}", highlight=False, markup=False, soft_wrap=True)
        overview = write_overview(folder.parent)
        if not as_json and overview is not None:
            console.print(f"all figures so far: {overview}", highlight=False, markup=False, soft_wrap=True)
    if left_out is not None:
        (errors if as_json else console).print(left_out, highlight=False, markup=False, soft_wrap=True)
    if as_json:
        print(json.dumps(drawn, indent=2))


def _tried(home: Home, sweep: SweepConfig, as_json: bool) -> tuple[list[RunResult], list[str]]:
    """Results of all cells of a sweep that tries settings, and the runs that failed: there is no other kind of end."""
    from flows.launch import launch_sweep
    from flows.recorded.former_ids import RecordedRuns
    from flows.runs import read_run
    from flows.sweep_files import finished_results

    try:
        return launch_sweep(sweep, console if not as_json else None, yes=True).results, []
    except InputError:
        runs = RecordedRuns(home)
        results = finished_results(home, sweep, runs)
        missing = {runs.run(cell) for cell in sweep.cells()} - {result.run for result in results}
        states = {run: read_run(home, run) for run in missing}
        if not missing or any(record is None or record.state != "FAILED" for record in states.values()):
            raise
        said = f"{len(missing)} runs failed on simulated silos; their settings are not chosen"
        (errors if as_json else console).print(said, highlight=False)
        return results, sorted(missing)


def resume(
    id: Annotated[str, typer.Argument(help="run or sweep id, or the beginning of one")], as_json: AsJson = False
) -> None:
    """Go on with a run or sweep after any stop. Finished rounds are not run again; the bits are the same."""
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
        _tell_again(home, record, record.sweep, as_json)
    show_run(record.result, as_json)


def _tell_again(home: Home, record: RunRecord, sweep: str | None, as_json: bool) -> None:
    """Writes what MLflow lacks of a finished run, and says so where its data or its version are gone."""
    from flows.launch import launch_run
    from flows.recorded.former_ids import RecordedRuns
    from flows.runs import is_begun

    try:
        if (now := RecordedRuns(home).run(record.config)) != record.run:
            anew = f"its parameters were begun anew as {now}"
            raise InputError(anew if is_begun(home, now) else "other data are in the place of its own")
        launch_run(record.config, console if not as_json else None, sweep, yes=True)
    except (InputError, SiloError) as error:
        errors.say(f"{record.run} is finished; what MLflow lacks of it cannot be written: {error}")


def _resume_sweep(home: Home, name: str, as_json: bool) -> None:
    """Goes on with a sweep. One of a former id is shown where all of it is finished, and MLflow gets of its cells what
    it lacks; else InputError."""
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

    config, told = load_saved(home, name), console if not as_json else None
    runs = recorded_runs(home, name, config)
    if runs.former_sweep is None:
        if not is_decided(home, config, runs):
            warn(config.cells(name))
        show_sweep(launch_sweep(config, told, yes=True), as_json)
        return
    if not is_decided(home, config, runs):
        refuse_former_sweep(home, config, runs)
    for cell in config.cells():
        if (record := runs.record(cell)) is not None and record.result is not None and not record.complete:
            _tell_again(home, record, name, as_json)
    if is_missing(home, name, config.cells()):
        errors.say(f"what MLflow lacks of sweep {name} itself cannot be written under its former id: its table is here")
    show_sweep(sweep_outcome(home, config, finished_results(home, config, runs), runs), as_json)
