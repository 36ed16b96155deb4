"""Starts a run or a sweep for a command: checks it, and carries out its flow in this process.

The flow uses the Prefect server and the Dask cluster of `fedcore up` if they are up, else its own.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedcore.errors import BusyError, InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from fedcore.experiment.identity import run_id
from fedcore.experiment.result import RunResult
from fedcore.experiment.statistics_run import check, check_all
from fedcore.experiment.sweep import SweepConfig
from fedcore.home import Home
from flows.confirm import not_begun, refuse_unless
from flows.driver.preconditions import check_cluster, check_federations, check_policies, check_shufflers
from flows.driver.signals import stopped_by
from flows.ladders import check_looks, tried_cells
from flows.launch_notices import (
    notify,
    notify_always,
    notify_other_environment,
    notify_pages,
    notify_restarts,
    other_code,
    unfinished,
)
from flows.pages.links import is_missing, mlflow_page, sweep_page
from flows.recorded.former_ids import UNDER_FORMER, RecordedRuns
from flows.recorded.recorded_data import data_note
from flows.reports.settings import settings
from flows.reports.sweep_outcome import SweepOutcome
from flows.reports.table import write_report
from flows.run_lock import Kind, drive_lock, refuse_if_driven, store_path
from flows.runs import read_run, refuse_if_damaged
from flows.services.environment import prefect_environment, prefect_settings
from flows.services.prefect_server import ServiceError, answers, server_errors, start_prefect_server
from flows.services.server_keeper import ServerKeeper
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
from flows.terminal.progress import RunsProgress
from tasks.proxies import leave_out_unusable_proxies
from tasks.run_file import read_meta

if TYPE_CHECKING:
    from flows.driver.session import Session

PATIENCE = 30.0
"""Seconds for a driver's last events to reach the Prefect server, before the driver releases it."""

server_lost = False
"""True if the Prefect server died under this driver. Prefect would try for minutes, at exit, to send it events."""


def launch_run(
    config: ExperimentConfig, console: Console | None, sweep: str | None = None, yes: bool = False
) -> RunResult:
    """Starts or resumes the run, unless it is finished, and returns its result.

    `console`: shows progress. `yes`: starts a large run without confirmation (`flows.confirm`). Raises InputError
    before any work for a user's mistake; SiloError, BusyError while it runs.
    """
    home = Home.current()
    runs = RecordedRuns(home)
    run, record = runs.run(config), runs.record(config)
    refuse_unless(yes, home, not_begun(home, [config], runs))
    if record is not None and record.result is not None:
        finished = f"finished; set repetition={config.repetition + 1} to run it once more"
        finished += f"{other_code([record.result])}{data_note(home, run, config)}"
        if run != run_id(config):
            same = f"{run} is of the same parameters, {UNDER_FORMER}"
            notify_always(console, f"{same}, and {finished}{runs.doubt([config])}")
        elif record.complete:
            notify(console, f"{run} is {finished}")
        if record.complete:
            return record.result
    if record is None:
        refuse_if_damaged(home, run)
        notify_restarts(console, runs.stopped([config]))
    else:
        notify_other_environment(home, console, record)
    with home.begun():
        make_plan(config)
        if record is not None and record.abandoned is not None:
            raise InputError(record.abandoned.refusal)
        refuse_if_driven(home, run)
        check_cluster([config])
        check_shufflers([config])
        check_federations(home, [config])
        check_policies(home, [config])
        check(config, home.silos)  # last: it writes simulated silos
    with (
        _complete_without_server(console, lambda: _complete_here(home, config)),
        RunsProgress(console, home, [config]) as progress,
        driver(home, progress, "run", [config]) as start,
    ):
        sections = {field: getattr(config, field) for field in ExperimentConfig.model_fields}
        start(run, sections | ({"sweep": sweep} if sweep else {}))
    done = read_run(home, run)
    if done is None or done.result is None:
        raise InputError(unfinished(home, [config]))
    notify_pages(home, console, [config], lambda pages: mlflow_page(home, pages, run))
    return done.result


def launch_sweep(config: SweepConfig, console: Console | None, yes: bool = False) -> SweepOutcome:
    """Runs the unfinished cells of the sweep and returns its outcome; errors as `launch_run`."""
    home = Home.current()
    cells, runs = config.cells(), RecordedRuns(home)
    refuse_unless(yes, home, not_begun(home, cells, runs), config.patience is not None)
    check_looks(config)
    if (taken := runs.taken_over(cells)) is not None:
        notify_always(console, taken)
    if not is_complete(home, config, runs) or is_missing(home, sweep_id(config), cells):
        notify_restarts(console, runs.stopped(cells))
        with home.begun():
            for cell in cells:
                make_plan(cell)
            check_cluster(cells)
            check_shufflers(cells)
            check_federations(home, cells)
            check_policies(home, cells)
            check_all(cells, home.silos)
        save_sweep_folder(home, config)
        with (
            _complete_without_server(console, lambda: is_complete(home, config, runs)),
            RunsProgress(console, home, cells, at_most=config.patience is not None) as shown,
            driver(home, shown, "sweep", cells) as start,
        ):
            start(sweep_id(config), config.model_dump(mode="json"))
        ended, most, _ = progress(home, config, runs)
        if ended < most:
            raise InputError(unfinished(home, tried_cells(home, config, runs)))
        notify_pages(home, console, cells, lambda pages: sweep_page(home, pages, sweep_id(config)))
    else:
        other = other_code(finished_results(home, config, runs))
        done = f"{len(cells)} cells are finished" if config.patience is None else "ladders are decided"
        notify(console, f"{sweep_id(config)}: all {done}{other}")
        if not (home.sweeps / sweep_id(config) / "sweep.json").exists():  # other sweeps ran its cells
            try:
                home.make()
                save_sweep_folder(home, config)
                if results := finished_results(home, config, runs):
                    write_report(home, sweep_id(config), results, config.patience, settings(config, runs.run))
            except InputError as unwritten:  # a full disk: the results are shown nevertheless
                notify(console, f"the sweep is not stored: {unwritten}")
    return sweep_outcome(home, config, finished_results(home, config, runs), runs)


def save_sweep_folder(home: Home, config: SweepConfig) -> None:
    """Writes the sweep's folder before its first cell starts, so that the sweep can be resumed.

    An existing folder stays unchanged, since another driver may hold it.
    """
    (home.sweeps / sweep_id(config)).mkdir(parents=True, exist_ok=True)
    try:
        load_saved(home, sweep_id(config))
    except InputError:
        save_sweep(home, config)


@contextlib.contextmanager
def _complete_without_server(console: Console | None, complete: Callable[[], bool]) -> Iterator[None]:
    """Turns ServiceError into a printed sentence, if all results are on disk."""
    try:
        yield
    except ServiceError as error:
        if not complete():
            raise
        notify(console, f"all results are complete and stored; {error}")


def _complete_here(home: Home, config: ExperimentConfig) -> bool:
    """True if the run is complete. Raises BusyError if another driver took it over and completed it."""
    complete, run = all_complete(home, [config]), RecordedRuns(home).run(config)
    driver = read_meta(store_path(home, run)).get("pid")
    if complete and driver not in (None, str(os.getpid())):
        raise BusyError(f"run {run} was taken over by process {driver}, which finished it")
    return complete


@contextlib.contextmanager
def driver(home: Home, progress: RunsProgress, kind: Kind, cells: Sequence[ExperimentConfig]) -> Iterator[Any]:
    """Yields `start(id, parameters)`, which carries out the flow `kind` of a run or sweep."""
    # Prefect's page shows tracebacks; the terminal shows only the error's sentence, at the end.
    leave_out_unusable_proxies()
    os.environ.update(prefect_environment(home) | {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL"})
    logging.raiseExceptions = False  # no traceback for a log line that the server refuses
    server = start_prefect_server(home)
    try:
        from flows.driver.session import Session

        with server_errors(server.log), Session.of_driver(home, progress.took) as session:
            session.commanded = True
            if all(cell.cluster == cells[0].cluster for cell in cells):
                session.cluster.warm(cells[0].cluster)
            if not server.shared:
                progress.show_note("starting the Prefect server")
            with prefect_settings(home, server.wait()), ServerKeeper(home, server):
                from flows.services.stale import close_stale_flow_runs

                close_stale_flow_runs(home)
                progress.show_note(None)

                def start(name: str, parameters: Mapping[str, Any]) -> None:
                    from flows.flow_runs import carry_out

                    with held_beside(home, name, kind):
                        with failure_of(session):
                            carry_out(kind, parameters, [f"{kind}:{name}"])
                        session.close()  # before the last events are sent: both take their time

                yield start
                drain_events()
    finally:
        try:
            lost = not answers(f"{server.url}/health", home, timeout=5.0)
        except InputError:  # a process of another account has its port
            lost = True
        if lost:
            # A run is complete without the server; only its last events are lost.
            logging.disable(logging.CRITICAL)
            global server_lost
            server_lost = True
        server.release()


@contextlib.contextmanager
def held_beside(home: Home, name: str, kind: Kind) -> Iterator[None]:
    """Holds the lock of a run or sweep from before its flow run is created until that has ended.

    This process can drive the run or sweep within the block. Raises BusyError as `drive_lock`.
    """
    with drive_lock(home, name, kind) as lock:
        release = lock.hold()
    try:
        yield
    finally:
        release()


@contextlib.contextmanager
def failure_of(session: Session) -> Iterator[None]:
    """Raises the failure of the session's last run, if there is one, in place of Prefect's error.

    Prefect may have ended the flow run of a driver that was paused.
    """
    try:
        yield
    except BaseException:
        if session.failure is None or stopped_by() is not None:
            raise
    if session.failure is not None:
        raise session.failure


def drain_events() -> None:
    """Ends Prefect's senders of events and logs, which would still send after the next start."""
    from prefect.events.worker import EventsWorker

    EventsWorker.drain_all(timeout=PATIENCE)
