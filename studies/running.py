"""The runs of a study: settings tried on simulated silos, then the sweep of each figure, and its drawing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.result import RunResult
from fedcore.experiment.sweep import SweepConfig
from fedcore.home import Home
from flows.commands.arguments import errors
from flows.confirm import not_begun, refuse_unless
from flows.launch import launch_sweep
from flows.recorded.former_ids import RecordedRuns
from flows.reports.sweep_outcome import SweepOutcome
from flows.runs import read_run
from flows.sweep_files import finished_results
from flows.terminal.urgent import warn
from studies.drawing import draw
from studies.figures.chosen import Choice
from studies.study import FigureConfig, Trials, choose, largest, load_trials


@dataclass(frozen=True)
class Drawn:
    """A figure whose runs are finished. `results` are those of `cells`, in their order."""

    figure: FigureConfig
    folder: Path
    cells: tuple[ExperimentConfig, ...]
    results: tuple[RunResult, ...]
    choices: tuple[Choice, ...]
    outcome: SweepOutcome


def run_figures(
    home: Home,
    name: str,
    figures: Sequence[tuple[FigureConfig, SweepConfig]],
    overrides: Sequence[str],
    console: Console | None,
    yes: bool,
) -> Iterator[Drawn]:
    """Runs each figure's unfinished cells, and draws the figure.

    `console`: shows progress. `yes`: starts a large run without confirmation. Raises InputError; for a user's mistake
    before any run.
    """
    tried = {figure.name: load_trials(name, figure, overrides) for figure, _ in figures}
    cells = [cell for figure, sweep in figures for cell in largest(figure, sweep, tried[figure.name])]
    refuse_unless(yes, home, not_begun(home, cells))
    warn(cells)
    for figure, sweep in figures:
        yield _run_figure(home, name, figure, sweep, tried[figure.name], console)


def _run_figure(
    home: Home, name: str, figure: FigureConfig, sweep: SweepConfig, trials: Trials | None, console: Console | None
) -> Drawn:
    chosen: list[Choice] = []
    if trials is not None:
        results, failed = _tried(home, trials.sweep, console)
        sweep, chosen = choose(home, name, figure, sweep, trials, results, failed)
    outcome = launch_sweep(sweep, console, yes=True)
    folder = draw(home, name, figure, sweep.cells(), outcome.results, chosen)
    runs, came = RecordedRuns(home), {result.run for result in outcome.results}
    cells = tuple(cell for cell in sweep.cells() if runs.run(cell) in came)
    return Drawn(figure, folder, cells, tuple(outcome.results), tuple(chosen), outcome)


def _tried(home: Home, sweep: SweepConfig, console: Console | None) -> tuple[list[RunResult], list[str]]:
    """Results of all cells of a sweep that tries settings, and the runs that failed.

    Raises InputError for a run that neither finished nor failed.
    """
    try:
        return launch_sweep(sweep, console, yes=True).results, []
    except InputError:
        runs = RecordedRuns(home)
        results = finished_results(home, sweep, runs)
        missing = {runs.run(cell) for cell in sweep.cells()} - {result.run for result in results}
        states = {run: read_run(home, run) for run in missing}
        if not missing or any(record is None or record.state != "FAILED" for record in states.values()):
            raise
        text = f"{len(missing)} runs failed on simulated silos; their settings are not chosen"
        (console or errors).print(text, highlight=False)
        return results, sorted(missing)
