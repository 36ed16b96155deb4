"""The deployments that `fedcore up` serves: `run/run` and `sweep/sweep`, each flow run in a process of its own."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import httpx
from prefect import serve
from prefect.client.orchestration import get_client
from prefect.types.entrypoint import EntrypointType

from fedcore.configfile import read_yaml
from fedcore.errors import InputError
from fedcore.home import Home
from flows.experiment import run_flow
from flows.failures import begin
from flows.schedules.parameters import ParametersWatch
from flows.services.stale import StaleWatch
from flows.sweep import sweep_flow

EXAMPLE = Path(__file__).with_name("conf") / "experiment" / "digits.yaml"
"""What Quick run on the page runs. A schedule's own parameters replace these, key by key."""

BY_MODULE = EntrypointType.MODULE_PATH
"""A flow that Prefect finds by its file has the working folder put first on the import path."""

LOOK = 5.0
"""Seconds between two looks for flow runs whose drivers were killed, and for schedules without their parameters."""


def main() -> None:
    """Serves until it is ended. A flow run that is retried on the page comes here and resumes its run."""
    threading.Thread(target=_watch, name="fedcore-stale", daemon=True).start()
    example = read_yaml(EXAMPLE, ())
    grid = {"privacy.epsilon": [1, 2, 4], "seed": [0, 1]}
    # One function for callers that wait and for coroutines: here it is the former.
    served: list[Any] = [
        run_flow.to_deployment("run", description=run_flow.__doc__, parameters=example, entrypoint_type=BY_MODULE),
        sweep_flow.to_deployment(
            "sweep", description=sweep_flow.__doc__, parameters={"name": "digits", "base": example, "grid": grid},
            entrypoint_type=BY_MODULE,
        ),
    ]
    serve(
        *served,
        pause_on_shutdown=False,
        print_starting_message=False,
        limit=2,
    )


def _watch() -> None:
    stale, parameters, wait = StaleWatch(Home.current()), ParametersWatch(Home.current()), threading.Event()
    while not wait.wait(LOOK):
        with contextlib.suppress(httpx.HTTPError, InputError, OSError), get_client(sync_client=True) as client:
            stale.look(client)
            parameters.look(client)


if __name__ == "__main__":
    begin()
    main()
