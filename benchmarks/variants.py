"""The compared ways to carry out the same rounds; each runs in its own process and does blocks of rounds on request.

A variant sets itself up, calls `serve(step)`, and cleans up when that returns; `step()` does one round. So a variant
may call `serve` where its rounds run, for instance inside a Prefect task.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks import workload
from fedcore.federation.rounds import rounds
from fedcore.home import LedgerFolders
from fedcore.memory import keep_memory

LOG = "output.log"
"""File in a variant's home with all that its processes print."""
Step = Callable[[], object]
Serve = Callable[[Step], None]


def floor(serve: Serve, home: Path, silos: int, planned: int, url: str) -> None:
    """(a) The plain NumPy loop."""
    loop = workload.Floor(workload.prepare(silos, planned, home))
    w = np.zeros(workload.FEATURES)

    def step() -> None:
        nonlocal w
        w = loop.step(w)

    serve(step)


def in_process(serve: Serve, home: Path, silos: int, planned: int, url: str) -> None:
    """(b) fedcore's round loop with all silos in this process."""
    serve_in_process(serve, workload.prepare(silos, planned, home), home)


class BareHolder:
    """An actor that does the floor's computation for its silos."""

    def __init__(self, silos: int, planned: int, home: Path, part: int) -> None:
        experiment = workload.prepare(silos, planned, home)
        names = [silo.name for silo in experiment.plan.problem.silos]
        size = len(names) // workload.WORKERS
        stop = None if part == workload.WORKERS - 1 else (part + 1) * size
        self._loop = workload.Floor(experiment, names[part * size : stop], seed=part)

    def answer(self, w: np.ndarray) -> np.ndarray:
        return np.stack(self._loop.messages(w))


def bare_actors(serve: Serve, home: Path, silos: int, planned: int, url: str) -> None:
    """(c) One Dask actor per worker, called directly; it returns stacked arrays."""
    from tasks.workers.cluster import local_cluster, worker_addresses

    loop = workload.Floor(workload.prepare(silos, planned, home), names=())
    w = np.zeros(workload.FEATURES)
    with local_cluster(workload.WORKERS) as client:
        futures = [
            client.submit(BareHolder, silos, planned, home, part, actor=True, workers=[name], pure=False)
            for part, name in enumerate(worker_addresses(client))
        ]
        actors = [future.result() for future in futures]

        def step() -> None:
            nonlocal w
            futures = [actor.answer(w) for actor in actors]
            w = loop.move(w, np.concatenate([answer.result() for answer in futures]))

        serve(step)


def dask_sites(serve: Serve, home: Path, silos: int, planned: int, url: str) -> None:
    """(d) fedcore's round loop with the silos on Dask workers."""
    serve_dask(serve, workload.prepare(silos, planned, home), home)


def stack_behind(serve: Serve, home: Path, silos: int, planned: int, url: str) -> None:
    """(e) Prefect round tasks, Dask, MLflow; checkpoints written by a thread."""
    run_stack(serve, home, workload.config(silos, planned, "behind"), url)


def stack_each_round(serve: Serve, home: Path, silos: int, planned: int, url: str) -> None:
    """(e) The same with a checkpoint on disk before each broadcast."""
    run_stack(serve, home, workload.config(silos, planned, "each-round"), url)


def stack_default(serve: Serve, home: Path, silos: int, planned: int, url: str) -> None:
    """(e) The defaults of the sections orchestration and tracking, which include metrics of a simulation."""
    run_stack(serve, home, workload.config(silos, planned, "each-round", simulation_metrics=True), url)


def run_stack(
    serve: Serve, home: Path, config: Any, url: str, prepared: Callable[[Any], None] = lambda training: None
) -> None:
    """Runs the production flow with a phase task that passes its rounds to `serve`.

    `prepared` is called with the Training first.
    """
    from prefect import task

    import flows.flow_runs
    from fedcore.home import Home
    from flows.driver.session import Session
    from flows.services.environment import prefect_settings
    from tasks.phases import _PLAIN, round_task

    @task(name="phase", task_run_name="phase {phase}", **_PLAIN)
    def phase_task(training: Any, phase: int, rounds_are_tasks: bool) -> None:
        if training._tracked.tracker is not None:
            session.tracker.flush(120.0)  # the store opens once per process; the first rounds' time excludes that
        prepared(training)
        serve(lambda: round_task(training, phase, training.round))
        if training.phase is not None:
            raise RuntimeError(f"round {training.phase}.{training.round} was planned and not asked for")

    place = Home(home).make()
    served = Home(Path(os.environ["PREFECT_HOME"]).parent)  # `benchmarks.rounds` has one server for all
    with (
        patch.object(flows.flow_runs, "phase_task", phase_task),
        prefect_settings(served, url),
        Session.of_driver(place) as session,
    ):
        flows.flow_runs.run_flow(**{field: getattr(config, field) for field in type(config).model_fields})


def serve_in_process(serve: Serve, experiment: Any, home: Path) -> None:
    """Serves rounds of fedcore's loop with all silos in this process."""
    serve_rounds(serve, experiment, experiment.in_process(LedgerFolders.below(home)))


def serve_dask(serve: Serve, experiment: Any, home: Path) -> None:
    """Serves rounds of fedcore's loop with the silos on Dask workers."""
    from tasks.workers.cluster import local_cluster
    from tasks.workers.sites import DaskSites

    with local_cluster(workload.WORKERS) as client:
        serve_rounds(serve, experiment, DaskSites(client, experiment, LedgerFolders.below(home), deadline=120.0))


def serve_rounds(serve: Serve, experiment: Any, backend: Any) -> None:
    """Serves rounds of fedcore's loop on this backend."""
    backend.open()
    with contextlib.closing(backend):
        state = experiment.config.algorithm.init(experiment.start())
        loop = rounds(experiment.context, state, backend.ask)
        serve(lambda: next(loop))


VARIANTS: dict[str, Callable[..., None]] = {
    "floor": floor,
    "in-process": in_process,
    "bare actors": bare_actors,
    "dask sites": dask_sites,
    "stack, behind": stack_behind,
    "stack, each-round": stack_each_round,
    "stack, defaults": stack_default,
}


def serve_variant(pipe: Any, variant: Callable[..., None], home: Path, silos: int, planned: int, url: str) -> None:
    """Main function of a variant's process: sends [] when it is ready, then the seconds of each round of a block."""
    os.environ["FEDCORE_HOME"] = str(home)
    home.mkdir(parents=True, exist_ok=True)
    with open(home / LOG, "ab", buffering=0) as log:  # libraries' lines would come between the tables
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    keep_memory()  # as the command line does; the plain loops get the same

    def serve(step: Step) -> None:
        pipe.send([])
        while count := pipe.recv():
            times = []
            for _ in range(count):
                began = time.perf_counter()
                step()
                times.append(time.perf_counter() - began)
            pipe.send(times)

    variant(serve, home, silos, planned, url)
