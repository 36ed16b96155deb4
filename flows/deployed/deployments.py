"""Deployments of `fedcore up`: `run/run` and `sweep/sweep`, each flow run in a process of its own.

Prefect's own runner executes code that a server sends: a deployment's pull steps. This runner takes two things from
the server: which flow run of a recorded deployment is due, and the values that `flows.schedules.orders` leaves free.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound
from prefect.settings import get_current_settings
from prefect.states import Cancelled, Crashed, Failed, Pending

from fedcore.configfile.reading import read_yaml
from fedcore.errors import InputError
from fedcore.home import Home
from fedcore.process_start import begin
from flows.flow_runs import run_flow
from flows.schedules.orders import Order, carried_out, forget_gone, free_fields
from flows.schedules.overdue import passed_over
from flows.services.environment import prefect_settings
from flows.services.stale import StaleWatch
from flows.sweep import sweep_flow

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

EXAMPLE = Path(__file__).parents[1] / "conf" / "experiment" / "digits.yaml"
"""Parameters of Quick run on Prefect's page."""

LIMIT = 2
"""Flow runs at a time."""
AHEAD = 10.0
"""Seconds by which a flow run's process starts before it is due: its imports take as long."""
LOOK = 5.0
"""Seconds between two searches for flow runs whose drivers were killed."""
STEP = 0.25
"""Seconds between two checks of due flow runs and ended processes."""


def main() -> None:
    """Serves until its process is ended. A flow run that is retried on the page starts here and resumes its run."""
    home, url = Home.current(), os.environ["PREFECT_API_URL"]
    with prefect_settings(home, url), get_client(sync_client=True) as client:
        served = register(home)
        forget_gone(home, client)
        threading.Thread(target=_watch, args=(home, url), name="fedcore-stale", daemon=True).start()
        Carriers(home, client, served).serve()


def register(home: Home) -> list[UUID]:
    """Registers the deployments with the server and records them at home; returns their ids. Only the record counts."""
    example = read_yaml(EXAMPLE, ())
    swept = {"name": "digits", "base": example, "grid": {"privacy.epsilon": [1, 2, 4], "seed": [0, 1]}}
    found = []
    for flow, parameters in ((run_flow, example), (sweep_flow, swept)):
        # Prefect types this function for synchronous callers and coroutines alike; this call is synchronous.
        made: Any = flow.to_deployment(flow.name, description=flow.__doc__, parameters=parameters)
        identity = UUID(str(made.apply()))
        kind: Any = flow.name
        Order(kind, parameters, free_fields(kind)).record(home, "deployment", identity)
        found.append(identity)
    return found


class Carriers:
    """Processes that carry out flow runs of these deployments, at most `LIMIT` at a time."""

    def __init__(self, home: Home, client: SyncPrefectClient, served: list[UUID]) -> None:
        self._home, self._client, self._served = home, client, served
        self._due: list[UUID] = []
        self._going: dict[UUID, tuple[FlowRun, subprocess.Popen[bytes]]] = {}

    def serve(self) -> None:
        """Looks for due flow runs, starts them and reaps ended ones, forever. Retries a server that does not answer."""
        every, looked = float(get_current_settings().runner.poll_frequency), -float("inf")
        while True:
            with contextlib.suppress(httpx.HTTPError, OSError):
                self.reap()
                if time.monotonic() - looked >= every:
                    looked = time.monotonic()
                    self.look()
                self.start_due()
            time.sleep(STEP)

    def look(self) -> None:
        """Reads the due flow runs from the server, and cancels firings that are passed over."""
        now = datetime.now(UTC)
        found = self._client.get_scheduled_flow_runs_for_deployments(self._served, now + timedelta(seconds=AHEAD))
        found.sort(key=lambda each: each.next_scheduled_start_time or now)
        over, early = passed_over(found, [known for known, _ in self._going.values()], now)
        for flow_run, why in over.items():
            with contextlib.suppress(ObjectNotFound):
                self._client.set_flow_run_state(flow_run, Cancelled(message=why))
        left = {*self._going, *over, *early}
        self._due = [each.id for each in found if each.id not in left]

    def start_due(self) -> None:
        while self._due and len(self._going) < LIMIT:
            self.start(self._due.pop(0))

    def start(self, flow_run: UUID) -> None:
        """Starts a flow run's process, or sets its state with the reason for a refusal."""
        try:
            response: Any = self._client.set_flow_run_state(flow_run, Pending())
            if response.state is None or not response.state.is_pending():
                return  # cancelled meanwhile, or paused
            known = self._client.read_flow_run(flow_run)
        except ObjectNotFound:
            return  # its schedule was paused or removed meanwhile
        if refuse_unless_recorded(self._home, self._client, known):
            command = [sys.executable, "-P", "-m", "flows.deployed.flow_run", str(flow_run)]
            self._going[flow_run] = known, subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def reap(self) -> None:
        """Drops ended processes. A flow run whose process set no final state becomes Crashed or Cancelled."""
        ended = [(flow_run, process) for flow_run, (_, process) in self._going.items() if process.poll() is not None]
        for flow_run, process in ended:
            with contextlib.suppress(ObjectNotFound):
                state = self._client.read_flow_run(flow_run).state
                if state is not None and not state.is_final() and not state.is_scheduled():
                    self._end(flow_run, state.is_cancelling(), process.returncode)
            del self._going[flow_run]

    def _end(self, flow_run: UUID, cancelled: bool, code: int) -> None:
        message = f"its process ended with code {code}; `fedcore resume` goes on"
        state: Any = Cancelled(message=message) if cancelled else Crashed(message=message)
        self._client.set_flow_run_state(flow_run, state, force=True)


def refuse_unless_recorded(home: Home, client: SyncPrefectClient, flow_run: FlowRun) -> bool:
    """True if the server's flow run agrees with this home's record; else sets it to Failed."""
    try:
        carried_out(home, flow_run)
    except InputError as error:
        client.set_flow_run_state(flow_run.id, Failed(message=f"refused: {error}"), force=True)
        return False
    return True


def _watch(home: Home, url: str) -> None:
    stale, wait = StaleWatch(home), threading.Event()
    with prefect_settings(home, url):  # the settings of a thread do not reach another
        while not wait.wait(LOOK):
            with contextlib.suppress(httpx.HTTPError, InputError, OSError), get_client(sync_client=True) as client:
                stale.look(client)


if __name__ == "__main__":
    begin()
    main()
