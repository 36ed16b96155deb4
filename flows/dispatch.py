"""Carrying out a flow: in this process, with the home's Prefect server, or at the deployments of `fedcore up`."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedcore.experiment.config import ExperimentConfig
from fedcore.home import Home
from flows.progress import RunsProgress
from flows.services.environment import prefect_environment, prefect_settings
from flows.services.prefect_server import ServiceError, answers, complaint, start_prefect_server
from flows.services.server_keeper import ServerKeeper
from flows.services.up_file import active_services

LITTLE_MB = 10.0
"""Below this much free space a server's error is put down to it: a full disk has no room for the log's words either."""

PATIENCE = 30.0
"""Seconds for what a driver still has to tell the Prefect server before it lets go of it."""

server_lost = False
"""Whether the Prefect server died under this driver. Prefect would try for minutes, at exit, to send it events."""


@contextlib.contextmanager
def driver(home: Home, progress: RunsProgress, kind: str, cells: Sequence[ExperimentConfig]) -> Iterator[Any]:
    """A function that carries out the flow `kind`: here, or at the deployments if they are up."""
    # Prefect's tracebacks stay off the terminal; its page has them. The sentence is printed at the end.
    os.environ.update(prefect_environment(home) | {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL"})
    logging.raiseExceptions = False  # a log line that the server does not take is not worth a word on the terminal
    up = active_services(home) or {}
    if "prefect" in up:
        from flows.services.stale import close_stale_flow_runs

        with explained(home.services / "prefect.log"), prefect_settings(up["prefect"]):
            close_stale_flow_runs(home)
            yield lambda parameters, cells: _submit(home, progress, kind, parameters(), cells)
        return
    server = start_prefect_server(home)
    try:
        from flows.session import Session

        with explained(server.log), Session.of_driver(home, progress.took) as session:
            if all(cell.cluster == cells[0].cluster for cell in cells):
                session.warm(cells[0].cluster)
            progress.say("starting the Prefect server")
            with prefect_settings(server.wait()), ServerKeeper(home, server):
                from flows.services.stale import close_stale_flow_runs

                close_stale_flow_runs(home)
                progress.say(None)

                def start(parameters: Any, cells: list[ExperimentConfig]) -> None:
                    _flow(kind)(**parameters())
                    session.close()  # before the last events are sent: both take their time

                yield start
                _send_what_is_left()
    finally:
        if not answers(f"{server.url}/health", timeout=5.0):
            # The run needs no server to be complete; its last events have nowhere to go.
            logging.disable(logging.CRITICAL)
            global server_lost
            server_lost = True
        server.release()


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


def _flow(kind: str) -> Any:
    if kind == "run":
        from flows.experiment import run_flow

        return run_flow
    from flows.sweep import sweep_flow

    return sweep_flow


def _submit(
    home: Home, progress: RunsProgress, kind: str, parameters: dict[str, Any], cells: list[ExperimentConfig]
) -> None:
    """Submits the flow to its deployment and follows it on disk. Ctrl-C cancels it."""
    from prefect.client.orchestration import get_client
    from prefect.deployments import run_deployment
    from prefect.states import Cancelling

    plain = {
        key: value.model_dump(mode="json") if hasattr(value, "model_dump") else value
        for key, value in parameters.items()
    }
    if kind == "run":
        plain["algorithm"] = cells[0].model_dump(mode="json")["algorithm"]
    # One function for callers that wait and for coroutines: here it is the former.
    flow_run: Any = run_deployment(f"{kind}/{kind}", parameters=plain, timeout=0, as_subflow=False)
    progress.say(f"submitted as flow run {flow_run.name}")
    with get_client(sync_client=True) as client:
        try:
            while True:
                state = client.read_flow_run(flow_run.id).state
                progress.follow()
                if state is not None and state.is_final():
                    return
                time.sleep(0.5)
        except KeyboardInterrupt:
            client.set_flow_run_state(flow_run.id, Cancelling())
            raise
