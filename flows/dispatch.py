"""Carrying out a flow in this process, with the Prefect server and Dask cluster of `fedcore up` where they are up.

A flow run belongs to the deployment of its kind, if there is one, so that Retry on the page goes on with it there. It
is not submitted to it: a process of its own takes longer to start than most runs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.home import Home
from flows.run_lock import Kind, drive_lock
from flows.services.environment import prefect_environment, prefect_settings
from flows.services.prefect_server import ServiceError, answers, complaint, start_prefect_server
from flows.services.server_keeper import ServerKeeper
from flows.terminal.progress import RunsProgress
from tasks.shuffling.proxies import leave_out_unusable_proxies

if TYPE_CHECKING:
    from flows.session import Session

LITTLE_MB = 10.0
"""Below this much free space a server's error is put down to it: a full disk has no room for the log's words either."""

PATIENCE = 30.0
"""Seconds for what a driver still has to tell the Prefect server before it lets go of it."""

server_lost = False
"""Whether the Prefect server died under this driver. Prefect would try for minutes, at exit, to send it events."""


@contextlib.contextmanager
def driver(home: Home, progress: RunsProgress, kind: Kind, cells: Sequence[ExperimentConfig]) -> Iterator[Any]:
    """A function that carries out the flow `kind` of a run or sweep of this id, with these parameters."""
    # Prefect's tracebacks stay off the terminal; its page has them. The sentence is printed at the end.
    leave_out_unusable_proxies()
    os.environ.update(prefect_environment(home) | {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL"})
    logging.raiseExceptions = False  # a log line that the server does not take is not worth a word on the terminal
    server = start_prefect_server(home)
    try:
        from flows.session import Session

        with explained(server.log), Session.of_driver(home, progress.took) as session:
            session.commanded = True
            if all(cell.cluster == cells[0].cluster for cell in cells):
                session.cluster.warm(cells[0].cluster)
            if not server.shared:
                progress.say("starting the Prefect server")
            with prefect_settings(home, server.wait()), ServerKeeper(home, server):
                from flows.services.stale import close_stale_flow_runs

                close_stale_flow_runs(home)
                progress.say(None)

                def start(name: str, parameters: Any) -> None:
                    from flows.deployed.flow_run import carry_out

                    with held_beside(home, name, kind):
                        with the_run_s_own_words(session):
                            carry_out(kind, parameters(), [f"{kind}:{name}"])
                        session.close()  # before the last events are sent: both take their time

                yield start
                _send_what_is_left()
    finally:
        try:
            lost = not answers(f"{server.url}/health", home, timeout=5.0)
        except InputError:  # a process of another account has its port
            lost = True
        if lost:
            # The run needs no server to be complete; its last events have nowhere to go.
            logging.disable(logging.CRITICAL)
            global server_lost
            server_lost = True
        server.release()


@contextlib.contextmanager
def held_beside(home: Home, name: str, kind: Kind) -> Iterator[None]:
    """Holds a run or sweep for the block, in which this process drives it, from before its flow run is made until that
    has ended. Raises BusyError as `drive_lock`."""
    with drive_lock(home, name, kind) as lock:
        let_go = lock.keep()
    try:
        yield
    finally:
        let_go()


@contextlib.contextmanager
def the_run_s_own_words(session: Session) -> Iterator[None]:
    """Raises why the run failed, if it did, whatever Prefect makes of that: for it, the flow run of a driver that was
    paused may be over."""
    from flows.drive import stopped_by

    try:
        yield
    except BaseException:
        if session.failure is None or stopped_by() is not None:
            raise
    if session.failure is not None:
        raise session.failure


def _send_what_is_left() -> None:
    """Ends Prefect's senders of events and logs, which would go on sending to this server after the next one starts."""
    from prefect.events.worker import EventsWorker

    EventsWorker.drain_all(timeout=PATIENCE)


@contextlib.contextmanager
def explained(log: Path) -> Iterator[None]:
    """Raises ServiceError in place of an error answer of the Prefect server, or none, with what its log says."""
    import httpx

    try:
        yield
    except httpx.HTTPError as error:
        answer = f"answered {error.response.status_code}" if isinstance(error, httpx.HTTPStatusError) else str(error)
        free = shutil.disk_usage(log.parent).free / 2**20
        why = f"only {free:.1f} MB are free at {log.parent}" if free < LITTLE_MB else f"see {log} ({complaint(log)})"
        raise ServiceError(f"Prefect server: {answer}; {why}; `fedcore runs` lists what can be resumed") from error
