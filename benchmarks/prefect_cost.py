"""Cost of a task run at the Prefect server, which records it after the driver has gone on."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import psutil

from fedcore.home import Home

DEADLINE = 120.0


def ingestion_apart(tasks: int, home: Home) -> dict[str, Any]:
    """Runs `ingestion` in a new process: a process's Prefect client sends events to one server until it ends."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(ingestion, tasks, home).result()


def ingestion(tasks: int, home: Home) -> dict[str, Any]:
    """Runs a flow of trivial round tasks at its own server, until that shows all of them COMPLETED; ms per task."""
    from flows.services.environment import prefect_settings
    from flows.services.prefect_server import start_prefect_server

    server = start_prefect_server(home)
    try:
        with prefect_settings(home, server.wait()):
            _flow(20, server.process.pid)  # the first flow of a process imports, connects and compiles
            return _flow(tasks, server.process.pid)
    finally:
        server.release()


def _flow(tasks: int, server: int) -> dict[str, Any]:
    from prefect import flow, runtime, task

    from tasks.phases import _PLAIN

    @task(name="round", task_run_name="round {phase}.{round}", **_PLAIN)
    def trivial(training: object, phase: int, round: int) -> None:
        pass

    seconds: dict[str, float] = {}

    @flow(name="ingestion", persist_result=False)
    def rounds() -> str:
        began = time.perf_counter()
        for round in range(1, tasks + 1):
            trivial(None, 1, round)
        seconds["client"] = time.perf_counter() - began
        return str(runtime.flow_run.id)

    worked, began = _cpu(server), time.perf_counter()
    flow_run = rounds()
    returned = time.perf_counter() - began
    while _completed(flow_run) < tasks:
        if time.perf_counter() - began > DEADLINE:
            raise RuntimeError(f"the Prefect server shows {_completed(flow_run)} of {tasks} task runs")
        time.sleep(0.1)
    recorded = time.perf_counter() - began
    return {
        "tasks": tasks,
        "client_ms_per_task": seconds["client"] / tasks * 1e3,
        "server_cpu_ms_per_task": (_cpu(server) - worked) / tasks * 1e3,
        "flow_seconds": returned,
        "recorded_ms_per_task": recorded / tasks * 1e3,
        "recorded_seconds_after_return": recorded - returned,
    }


def _completed(flow_run: str) -> int:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, TaskRunFilter, TaskRunFilterState
    from prefect.client.schemas.filters import TaskRunFilterStateName as StateName

    states = TaskRunFilter(state=TaskRunFilterState(name=StateName(any_=["Completed"])))
    body = {
        "flow_runs": FlowRunFilter(id=FlowRunFilterId(any_=[flow_run])).model_dump(mode="json"),
        "task_runs": states.model_dump(mode="json"),
    }
    with get_client(sync_client=True) as client:
        return int(client._client.post("/task_runs/count", json=body).json())


def _cpu(pid: int) -> float:
    """Processor seconds of a process and its descendants."""
    process = psutil.Process(pid)
    times = [child.cpu_times() for child in (process, *process.children(recursive=True))]
    return sum(time.user + time.system for time in times)
