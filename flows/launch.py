"""Starting a run or sweep from the command line: what is checked before, what is said once it is done or stopped."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console

from fedcore.data.file_sources import file_sources
from fedcore.data.generated import public_data_set
from fedcore.errors import BusyError, InputError, SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import check_policies, make_plan
from fedcore.experiment.identity import code_version, run_id
from fedcore.experiment.kept.binding import ways_on
from fedcore.experiment.result import RunResult
from fedcore.experiment.statistics_run import check, check_all
from fedcore.experiment.sweep import SweepConfig
from fedcore.home import Home
from flows.asking import not_begun, refuse_unless
from flows.dispatch import driver
from flows.former_ids import former_run
from flows.ladders import check_looks, tried_cells
from flows.pages.links import mlflow_page, sweep_page
from flows.reports.settings import settings
from flows.reports.table import write_report
from flows.run_lock import refuse_if_driven, store_path
from flows.runs import RunRecord, read_run, refuse_if_damaged
from flows.services.prefect_server import ServiceError
from flows.services.up_file import active_services, browse, status
from flows.sweep_files import (
    SweepOutcome,
    all_complete,
    finished_results,
    is_complete,
    progress,
    save_sweep,
    sweep_id,
    sweep_outcome,
)
from flows.terminal.progress import RunsProgress
from tasks.binding import named, other_environment, other_files
from tasks.run_file import read_meta


def launch_run(
    config: ExperimentConfig, console: Console | None, sweep: str | None = None, yes: bool = False
) -> RunResult:
    """The result of the run, started, continued, or found finished. `console`: where progress is shown. `yes`: to a
    large one (`flows.asking`).

    Raises InputError before any work for a user's mistake; SiloError, BusyError while it runs.
    """
    home = Home.current()
    refuse_unless(yes, home, not_begun(home, [config]))
    record = read_run(home, run_id(config))
    if record is not None and record.complete and record.result is not None:
        again = f"set repetition={config.repetition + 1} to run it once more"
        _say(console, f"{record.run} is finished; {again}{_other_code([record.result])}{_other_data(home, config)}")
        return record.result
    if record is None:
        refuse_if_damaged(home, run_id(config))
        if (former := former_run(home, config)) is not None:
            same = f"{former.run} is of the same parameters, under the id that fedcore gave them before"
            if former.result is not None:
                _say(console, f"{same}, and finished; set repetition={config.repetition + 1} to run it once more")
                return former.result
            ways = ways_on(former.run, config.repetition, config.privacy.ledger == "sqlite")
            _say(console, f"{same}, and stopped: it cannot go on, and {run_id(config)} begins; {ways}")
    else:
        _say_other_environment(home, console, record)
    with home.begun():
        make_plan(config)
        if record is not None and record.abandoned is not None:
            raise InputError(record.abandoned.refusal)
        refuse_if_driven(home, run_id(config))
        _check_cluster([config])
        _check_shufflers([config])
        _check_policies(home, [config])
        check(config, home.silos)  # last: it writes simulated silos
    with (
        _complete_without_server(console, lambda: _complete_here(home, config)),
        RunsProgress(console, home, [config]) as progress,
        driver(home, progress, "run", [config]) as start,
    ):
        extra = {"sweep": sweep} if sweep else {}
        start(run_id(config), lambda: _run_parameters(config) | extra)
    done = read_run(home, run_id(config))
    if done is None or done.result is None:
        raise InputError(_stopped(home, [config]))
    _say_where(home, console, [config], lambda pages: mlflow_page(home, pages, run_id(config)))
    return done.result


def launch_sweep(config: SweepConfig, console: Console | None, yes: bool = False) -> SweepOutcome:
    """The outcome of the sweep (`sweep_outcome`); errors as `launch_run`."""
    home = Home.current()
    cells = config.cells()
    refuse_unless(yes, home, not_begun(home, cells), config.patience is not None)
    check_looks(config)
    if not is_complete(home, config):
        with home.begun():
            for cell in cells:
                make_plan(cell)
            _check_cluster(cells)
            _check_shufflers(cells)
            _check_policies(home, cells)
            check_all(cells, home.silos)
        save_sweep_folder(home, config)
        with (
            _complete_without_server(console, lambda: is_complete(home, config)),
            RunsProgress(console, home, cells, at_most=config.patience is not None) as shown,
            driver(home, shown, "sweep", cells) as start,
        ):
            start(sweep_id(config), lambda: config.model_dump(mode="json"))
        done, most, _ = progress(home, config)
        if done < most:
            raise InputError(_stopped(home, tried_cells(home, config)))
        _say_where(home, console, cells, lambda pages: sweep_page(home, pages, sweep_id(config)))
    else:
        other = _other_code(finished_results(home, config))
        what = f"{len(cells)} cells are finished" if config.patience is None else "ladders are decided"
        _say(console, f"{sweep_id(config)}: all {what}{other}")
        if not (home.sweeps / sweep_id(config) / "sweep.json").exists():  # its cells were those of other sweeps
            try:
                home.make()
                save_sweep_folder(home, config)
                if results := finished_results(home, config):
                    write_report(home, sweep_id(config), results, config.patience, settings(config))
            except InputError as unkept:  # of a full disk: what is there is shown all the same
                _say(console, f"the sweep is not kept: {unkept}")
    return sweep_outcome(home, config, finished_results(home, config))


def _other_code(results: Sequence[RunResult]) -> str:
    """A warning if results were made by another version of the code than the present one."""
    other = {result.code for result in results} - {code_version()}
    return f"; made by code {', '.join(sorted(other))}, this is {code_version()}" if other else ""


def _other_data(home: Home, config: ExperimentConfig) -> str:
    """A warning if the data of a finished run are others now, where they still are."""
    meta = read_meta(store_path(home, run_id(config)))
    try:
        if config.data.source == "files":
            silos = other_files(meta, file_sources(config.data, config.model)) if "files" in meta else []
            what = f"the file of {named(silos)}" if silos else None
        else:
            there = public_data_set(config.data, config.seed)
            what = "what its public files hold" if there is not None and meta.get("silos", there) != there else None
    except (InputError, SiloError):
        return ""
    return "" if what is None else f"; {what} changed since then, and the result is of what was there before"


def _say_other_environment(home: Home, console: Console | None, record: RunRecord) -> None:
    if record.result is None and (differs := other_environment(read_meta(store_path(home, record.run)))) is not None:
        _say(console, f"{record.run} goes on where last bits of sums may differ ({differs}): as private, other bits")


def save_sweep_folder(home: Home, config: SweepConfig) -> None:
    """Keeps the sweep before its first cell starts, so that it can be resumed from then on."""
    (home.sweeps / sweep_id(config)).mkdir(parents=True, exist_ok=True)
    save_sweep(home, config)


def _check_cluster(cells: Sequence[ExperimentConfig]) -> None:
    """Raises InputError if a config names a Dask scheduler that does not answer, before anything is started."""
    named = {cell.cluster.model_dump_json(): cell.cluster for cell in cells if cell.cluster.backend == "dask"}
    for cluster in named.values():
        if cluster.address is not None:
            from tasks.workers.cluster import own_cluster

            with own_cluster(cluster, min(10.0, cluster.deadline)):
                pass


def _check_shufflers(cells: Sequence[ExperimentConfig]) -> None:
    """Raises InputError if a config names a shuffler that does not answer, before anything is started."""
    named = {
        (cell.shuffler.address, cell.shuffler.secret, cell.cluster.address): cell
        for cell in cells if cell.shuffler is not None
    }  # fmt: skip
    for cell in named.values():
        from flows.shuffled import check_shuffler

        check_shuffler(cell)


def _check_policies(home: Home, cells: Sequence[ExperimentConfig]) -> None:
    """Raises InputError if silos have no policy and need one, or have one and would be opened unguarded.

    Only where they will be opened from here, by a process with this environment: elsewhere it is the silos that know.
    """
    kinds = {cell.model_dump_json(include={"data", "model", "seed", "privacy"}): cell for cell in cells}
    for cell in kinds.values():
        here = cell.cluster.address is None and not active_services(home)
        if cell.cluster.backend == "in-process" or here:
            check_policies(cell)


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
    complete = all_complete(home, [config])
    driver = read_meta(store_path(home, run_id(config))).get("pid")
    if complete and driver not in (None, str(os.getpid())):
        raise BusyError(f"run {run_id(config)} was taken over by process {driver}, which finished it")
    return complete


def _run_parameters(config: ExperimentConfig) -> dict[str, Any]:
    from flows.experiment import parameters

    return parameters(config)


def _stopped(home: Home, cells: list[ExperimentConfig]) -> str:
    """Why cells are not finished, in a sentence."""
    open_cells = [(run_id(cell), read_run(home, run_id(cell))) for cell in cells]
    ended = ("FINISHED", "ABANDONED")
    failed = [(run, record) for run, record in open_cells if record is None or record.state not in ended]
    run, record = failed[0]
    reason = record.message or record.state if record is not None else "it did not start"
    return f"{len(failed)} of {len(cells)} runs did not finish; {run}: {reason}; `fedcore resume` goes on"


def _say(console: Console | None, text: str, soft_wrap: bool = False) -> None:
    """`soft_wrap`: leaves a long line whole, as a link has to be."""
    if console is not None:
        console.print(text, highlight=False, soft_wrap=soft_wrap)


def _say_where(
    home: Home, console: Console | None, configs: Sequence[ExperimentConfig],
    in_mlflow: Callable[[dict[str, str]], str | None],
) -> None:  # fmt: skip
    pages, served = browse(home)
    first = "" if served else "`make up`, then "
    if any(config.tracking.mlflow for config in configs):
        _say(console, f"browse the runs in MLflow:    {first}{in_mlflow(pages) or pages['mlflow']}", True)
    _say(console, f"browse the flows in Prefect:  {first}{pages['prefect']}/runs", True)
    if not status(home).get("deployments", {"alive": True})["alive"]:
        _say(console, "the deployments of `fedcore up` ended: schedules and Retry on the page wait for `fedcore up`")
