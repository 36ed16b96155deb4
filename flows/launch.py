"""Starting a run or sweep from the command line: what is checked before, what is said once it is done or stopped."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console

from fedcore.errors import BusyError, InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from fedcore.experiment.identity import code_version, run_id
from fedcore.experiment.result import RunResult
from fedcore.experiment.statistics_run import check, check_all
from fedcore.experiment.sweep import SweepConfig
from fedcore.home import Home
from flows.asking import not_begun, refuse_unless
from flows.dispatch import driver
from flows.driver.preconditions import check_cluster, check_policies, check_shufflers
from flows.kept.former_ids import UNDER_FORMER, KeptRuns, begins_anew
from flows.kept.kept_data import said_of_data
from flows.ladders import check_looks, tried_cells
from flows.pages.links import is_missing, mlflow_page, sweep_page
from flows.reports.settings import settings
from flows.reports.sweep_outcome import SweepOutcome
from flows.reports.table import write_report
from flows.run_lock import refuse_if_driven, store_path
from flows.runs import RunRecord, read_run, refuse_if_damaged
from flows.services.prefect_server import ServiceError
from flows.services.up_file import browse, status
from flows.sweep_files import (
    all_complete,
    finished_results,
    is_complete,
    load_saved,
    progress,
    save_sweep,
    sweep_id,
    sweep_outcome,
)
from flows.terminal.console import Terminal
from flows.terminal.progress import RunsProgress
from tasks.binding import other_environment
from tasks.run_file import read_meta


def launch_run(
    config: ExperimentConfig, console: Console | None, sweep: str | None = None, yes: bool = False
) -> RunResult:
    """The result of the run, started, continued, or found finished. `console`: where progress is shown. `yes`: to a
    large one (`flows.asking`).

    Raises InputError before any work for a user's mistake; SiloError, BusyError while it runs.
    """
    home = Home.current()
    runs = KeptRuns(home)
    run, record = runs.run(config), runs.record(config)
    refuse_unless(yes, home, not_begun(home, [config], runs))
    if record is not None and record.result is not None:
        finished = f"finished; set repetition={config.repetition + 1} to run it once more"
        finished += f"{_other_code([record.result])}{said_of_data(home, run, config)}"
        if run != run_id(config):
            same = f"{run} is of the same parameters, {UNDER_FORMER}"
            _say_in_any_case(console, f"{same}, and {finished}{runs.doubt([config])}")
        elif record.complete:
            _say(console, f"{run} is {finished}")
        if record.complete:
            return record.result
    if record is None:
        refuse_if_damaged(home, run)
        _say_anew(console, runs.stopped([config]))
    else:
        _say_other_environment(home, console, record)
    with home.begun():
        make_plan(config)
        if record is not None and record.abandoned is not None:
            raise InputError(record.abandoned.refusal)
        refuse_if_driven(home, run)
        check_cluster([config])
        check_shufflers([config])
        check_policies(home, [config])
        check(config, home.silos)  # last: it writes simulated silos
    with (
        _complete_without_server(console, lambda: _complete_here(home, config)),
        RunsProgress(console, home, [config]) as progress,
        driver(home, progress, "run", [config]) as start,
    ):
        extra = {"sweep": sweep} if sweep else {}
        start(run, lambda: _run_parameters(config) | extra)
    done = read_run(home, run)
    if done is None or done.result is None:
        raise InputError(_stopped(home, [config]))
    _say_where(home, console, [config], lambda pages: mlflow_page(home, pages, run))
    return done.result


def launch_sweep(config: SweepConfig, console: Console | None, yes: bool = False) -> SweepOutcome:
    """The outcome of the sweep (`sweep_outcome`); errors as `launch_run`."""
    home = Home.current()
    cells, runs = config.cells(), KeptRuns(home)
    refuse_unless(yes, home, not_begun(home, cells, runs), config.patience is not None)
    check_looks(config)
    if (taken := runs.taken_over(cells)) is not None:
        _say_in_any_case(console, taken)
    if not is_complete(home, config, runs) or is_missing(home, sweep_id(config), cells):
        _say_anew(console, runs.stopped(cells))
        with home.begun():
            for cell in cells:
                make_plan(cell)
            check_cluster(cells)
            check_shufflers(cells)
            check_policies(home, cells)
            check_all(cells, home.silos)
        save_sweep_folder(home, config)
        with (
            _complete_without_server(console, lambda: is_complete(home, config, runs)),
            RunsProgress(console, home, cells, at_most=config.patience is not None) as shown,
            driver(home, shown, "sweep", cells) as start,
        ):
            start(sweep_id(config), lambda: config.model_dump(mode="json"))
        done, most, _ = progress(home, config, runs)
        if done < most:
            raise InputError(_stopped(home, tried_cells(home, config, runs)))
        _say_where(home, console, cells, lambda pages: sweep_page(home, pages, sweep_id(config)))
    else:
        other = _other_code(finished_results(home, config, runs))
        what = f"{len(cells)} cells are finished" if config.patience is None else "ladders are decided"
        _say(console, f"{sweep_id(config)}: all {what}{other}")
        if not (home.sweeps / sweep_id(config) / "sweep.json").exists():  # its cells were those of other sweeps
            try:
                home.make()
                save_sweep_folder(home, config)
                if results := finished_results(home, config, runs):
                    write_report(home, sweep_id(config), results, config.patience, settings(config, runs.run))
            except InputError as unkept:  # of a full disk: what is there is shown all the same
                _say(console, f"the sweep is not kept: {unkept}")
    return sweep_outcome(home, config, finished_results(home, config, runs), runs)


def _other_code(results: Sequence[RunResult]) -> str:
    """A warning if results were made by another version of the code than the present one."""
    other = {result.code for result in results} - {code_version()}
    return f"; made by code {', '.join(sorted(other))}, this is {code_version()}" if other else ""


def _say_other_environment(home: Home, console: Console | None, record: RunRecord) -> None:
    if record.result is None and (differs := other_environment(read_meta(store_path(home, record.run)))) is not None:
        _say(console, f"{record.run} goes on where last bits of sums may differ ({differs}): as private, other bits")


def save_sweep_folder(home: Home, config: SweepConfig) -> None:
    """Keeps the sweep before its first cell starts, so that it can be resumed from then on; one that is kept already
    stays as it is, since another driver may have it."""
    (home.sweeps / sweep_id(config)).mkdir(parents=True, exist_ok=True)
    try:
        load_saved(home, sweep_id(config))
    except InputError:
        save_sweep(home, config)


@contextlib.contextmanager
def _complete_without_server(console: Console | None, complete: Callable[[], bool]) -> Iterator[None]:
    """A Prefect server that is lost once all results are on disk is worth a sentence, and no failure."""
    try:
        yield
    except ServiceError as error:
        if not complete():
            raise
        _say(console, f"all results are complete and kept; {error}")


def _complete_here(home: Home, config: ExperimentConfig) -> bool:
    """Whether the run is complete. Raises BusyError if that is another driver's doing, which took it over."""
    complete, run = all_complete(home, [config]), KeptRuns(home).run(config)
    driver = read_meta(store_path(home, run)).get("pid")
    if complete and driver not in (None, str(os.getpid())):
        raise BusyError(f"run {run} was taken over by process {driver}, which finished it")
    return complete


def _run_parameters(config: ExperimentConfig) -> dict[str, Any]:
    from flows.experiment import parameters

    return parameters(config)


def _stopped(home: Home, cells: list[ExperimentConfig]) -> str:
    """Why cells are not finished, in a sentence."""
    runs = KeptRuns(home)
    open_cells = [(runs.run(cell), runs.record(cell)) for cell in cells]
    ended = ("FINISHED", "ABANDONED")
    failed = [(run, record) for run, record in open_cells if record is None or record.state not in ended]
    run, record = failed[0]
    reason = record.message or record.state if record is not None else "it did not start"
    return f"{len(failed)} of {len(cells)} runs did not finish; {run}: {reason}; `fedcore resume` goes on"


def _say_anew(console: Console | None, stopped: Sequence[RunRecord]) -> None:
    if stopped:
        _say_in_any_case(console, begins_anew(stopped))


def _say_in_any_case(console: Console | None, text: str) -> None:
    """On standard error where standard output is JSON: what is charged once more, or is of another run."""
    _say(console or Terminal(stderr=True), text)


def _say(console: Console | None, text: str, soft_wrap: bool = False) -> None:
    """`soft_wrap`: leaves a long line whole, as a link has to be."""
    if console is not None:
        console.print(text, highlight=False, soft_wrap=soft_wrap)


def _say_where(
    home: Home,
    console: Console | None,
    configs: Sequence[ExperimentConfig],
    in_mlflow: Callable[[dict[str, str]], str | None],
) -> None:
    pages, served = browse(home)
    first = "" if served else "`make up`, then "
    if any(config.tracking.mlflow for config in configs):
        _say(console, f"browse the runs in MLflow:    {first}{in_mlflow(pages) or pages['mlflow']}", True)
    _say(console, f"browse the flows in Prefect:  {first}{pages['prefect']}/runs", True)
    if not status(home).get("deployments", {"alive": True})["alive"]:
        _say(console, "the deployments of `fedcore up` ended: schedules and Retry on the page wait for `fedcore up`")
