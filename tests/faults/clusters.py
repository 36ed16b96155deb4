"""Clusters that outlive a driver: those of `fedcore up`, and one of a test's own, each process started by hand."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedcore.home import Home
from flows.services.machine import down, up
from tests.patience import SOON
from tests.ports import ports_to_oneself


@dataclass(frozen=True)
class Standing:
    """A home, and the section `cluster` of configs whose runs go to the workers that stand."""

    home: Path
    cluster: dict[str, object]


@contextlib.contextmanager
def standing(kind: str, folder: Path) -> Iterator[Standing]:
    """Two workers with nannies, of this kind."""
    home = Home(folder / "home").make()
    if kind == "up":
        with ports_to_oneself():
            up(home, workers=2)
        try:
            yield Standing(home.root, {"deadline": 240.0})
        finally:
            down(home)
        return
    with own_cluster(folder, ["--nworkers", "2", "--name", "own", "--nanny"]) as address:
        yield Standing(home.root, {"address": address, "deadline": 240.0})


@contextlib.contextmanager
def own_cluster(folder: Path, *workers: list[str]) -> Iterator[str]:
    """Address of a new scheduler, with a process of `dask worker` for each list of arguments."""
    scheduler, processes = folder / "scheduler.json", []
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}

    def start(program: str, *arguments: str) -> None:
        command = [sys.executable, "-P", "-m", f"distributed.cli.{program}", *arguments]
        with open(folder / "dask.log", "ab") as log:
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    try:
        start("dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(scheduler),
              "--no-dashboard")  # fmt: skip
        until = time.monotonic() + SOON
        while not scheduler.exists():
            assert time.monotonic() < until, (folder / "dask.log").read_text()
            time.sleep(0.1)
        address = json.loads(scheduler.read_text())["address"]
        for arguments in workers:
            start("dask_worker", address, "--host", "127.0.0.1", "--nthreads", "1", "--no-dashboard",
                  "--local-directory", str(folder / "dask"), *arguments)  # fmt: skip
        wait_for_workers(address, len(workers) if "--nworkers" not in workers[0] else 2)
        yield address
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in reversed(processes):
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=SOON)


def wait_for_workers(address: str, count: int) -> None:
    from distributed import Client

    with Client(address, timeout=SOON) as client:
        client.wait_for_workers(count, timeout=SOON)


def process_ids(address: str) -> dict[str, int]:
    """The process of each worker, by its name."""
    from distributed import Client

    with Client(address, timeout=SOON) as client:
        found = client.run(os.getpid)
        names = {key: worker["name"] for key, worker in client.scheduler_info(n_workers=-1)["workers"].items()}
        return {str(names[key]): pid for key, pid in found.items()}
