"""A flow run that this process carries out: of a deployment if there is one, and stopped by Cancel on the page.

`python -m flows.deployed.flow_run ID` is what the deployments start for one that is due.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from fedcore.errors import InputError
from fedcore.home import Home
from fedcore.process_start import begin
from flows.schedules.orders import Order, carried_out
from flows.services.secret import authorization
from flows.services.stale import close_task_runs

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

LOOK = 2.0
"""Seconds between two looks at whether the flow run was cancelled."""
_STOPPED = ("CANCELLING", "CANCELLED")


def carry_out(kind: str, parameters: Mapping[str, Any], tags: Sequence[str]) -> None:
    """Runs the flow `kind` (run or sweep) here, to its end. Its errors are raised; Ctrl-C, SIGTERM and Cancel on the
    page leave it Cancelled."""
    from prefect.client.orchestration import get_client

    flow = _flow(kind)
    with get_client(sync_client=True) as client:
        _carry_out(client, flow, _made(client, flow, parameters, tags), parameters)


def main(flow_run: str) -> None:
    """Carries out a flow run of a deployment as this home has recorded it; the server says when,
    and its free fields."""
    from prefect.client.orchestration import get_client
    from prefect.states import Failed

    from flows.services.environment import prefect_settings

    home = Home.current()
    with prefect_settings(home, os.environ["PREFECT_API_URL"]), get_client(sync_client=True) as client:
        found = client.read_flow_run(UUID(flow_run))
        try:
            kind, parameters = carried_out(home, found)
        except InputError as error:
            client.set_flow_run_state(found.id, Failed(message=f"refused: {error}"), force=True)
            return
        _carry_out(client, _flow(kind), found, parameters)


def _carry_out(client: SyncPrefectClient, flow: Any, flow_run: FlowRun, parameters: Mapping[str, Any]) -> None:
    from prefect.flow_engine import run_flow

    from flows.drive import stopped_by

    with _cancellable(flow_run.id):
        try:
            run_flow(flow, flow_run=flow_run, parameters=dict(parameters))
        except BaseException as error:
            # What the signal interrupted may have turned it into an error of its own.
            if isinstance(error, KeyboardInterrupt) or stopped_by() is not None:
                with contextlib.suppress(Exception):  # without a server there is nobody to be told
                    _cancelled(client, flow_run.id, stopped_by() or str(error) or "Ctrl-C")
            raise


def _flow(kind: str) -> Any:
    if kind == "run":
        from flows.experiment import run_flow

        return run_flow
    from flows.sweep import sweep_flow

    return sweep_flow


def _made(client: SyncPrefectClient, flow: Any, parameters: Mapping[str, Any], tags: Sequence[str]) -> FlowRun:
    """A flow run that no deployment takes up by itself: it is not scheduled. Retry on the page
    does what is recorded."""
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Pending

    plain = flow.serialize_parameters(dict(parameters))
    try:
        deployment = client.read_deployment_by_name(f"{flow.name}/{flow.name}")
    except ObjectNotFound:
        return client.create_flow_run(flow, parameters=plain, state=Pending(), tags=tags)
    made = client.create_flow_run_from_deployment(deployment.id, parameters=plain, state=Pending(), tags=tags)
    Order(flow.name, plain).keep(Home.current(), "flow-run", made.id)
    return made


@contextlib.contextmanager
def _cancellable(flow_run: UUID) -> Iterator[None]:
    """Sends SIGTERM to this process once the flow run is cancelled: a run is stopped as by `kill`."""
    ended = threading.Event()
    # The settings of this thread name the server; a new thread would not have them.
    from prefect.settings import PREFECT_API_URL

    page = f"{PREFECT_API_URL.value()}/flow_runs/{flow_run}"
    home = Home.current()

    def look() -> None:
        import httpx

        while not ended.wait(LOOK):
            with contextlib.suppress(httpx.HTTPError, InputError, ValueError, LookupError):
                known = {"Authorization": authorization(home, page)}
                found = httpx.get(page, headers=known, timeout=LOOK, trust_env=False).json()
                if found["state_type"] in _STOPPED:
                    os.kill(os.getpid(), signal.SIGTERM)
                    return

    thread = threading.Thread(target=look, name="fedcore-cancel", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _cancelled(client: SyncPrefectClient, flow_run: UUID, why: str) -> None:
    from prefect.states import Cancelled

    message = f"stopped by {why}; `fedcore resume` goes on"
    close_task_runs(client, flow_run, Cancelled(message=message))
    client.set_flow_run_state(flow_run, Cancelled(message=message), force=True)


if __name__ == "__main__":
    begin()
    main(*sys.argv[1:])
