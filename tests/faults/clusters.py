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

from distributed import Client, Security

from fedcore.home import Home
from flows.services.machine import down, up
from flows.services.up_file import active_services
from tests.doors import issued
from tests.patience import HANGS, SOON
from tests.ports import ports_to_oneself

DEADLINE = 60.0
"""Seconds (`cluster.deadline`) for a site to answer."""


@dataclass(frozen=True)
class LedgerState:
    """A home, and the section `cluster` of configs whose runs use the standing workers."""

    home: Path
    cluster: dict[str, object]

    def client(self) -> Client:
        """A client of the cluster, by its keys."""
        if "address" in self.cluster:
            return own_client(self.cluster)
        home = Home(self.home)
        keys = security(home.cluster_keys, home.cluster_keys, home.cluster_keys)
        return Client((active_services(home) or {})["dask"], timeout=HANGS, security=keys)


def security(authority: Path | str, certificate: Path | str, key: Path | str) -> Security:
    files = {f"tls_client_{name}": str(path) for name, path in (("cert", certificate), ("key", key))}
    return Security(require_encryption=True, tls_ca_file=str(authority), **files)


def own_client(cluster: dict[str, object]) -> Client:
    """A client of the cluster of this section of a config."""
    tls = cluster["tls"]
    return Client(cluster["address"], timeout=SOON, security=security(tls["ca"], tls["certificate"], tls["key"]))


@contextlib.contextmanager
def state(kind: str, folder: Path) -> Iterator[LedgerState]:
    """Two workers with nannies, of this kind."""
    home = Home(folder / "home").make()
    if kind == "up":
        with ports_to_oneself():
            up(home, workers=2)
        try:
            yield LedgerState(home.root, {"deadline": DEADLINE})
        finally:
            down(home)
        return
    with own_cluster(folder, ["--nworkers", "2", "--name", "own", "--nanny"]) as cluster:
        yield LedgerState(home.root, cluster)


@contextlib.contextmanager
def own_cluster(folder: Path, *workers: list[str]) -> Iterator[dict[str, object]]:
    """A scheduler by TLS, with a process of `dask worker` for each list of arguments; the section `cluster` of configs
    whose runs go there."""
    scheduler, processes = folder / "scheduler.json", []
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    authority = issued(folder, "authority", None)
    theirs, mine = issued(folder, "cluster", authority), issued(folder, "driver", authority)
    keys = ["--tls-ca-file", str(authority), "--tls-cert", str(theirs), "--tls-key", str(theirs.with_suffix(".key"))]

    def start(program: str, *arguments: str) -> None:
        command = [sys.executable, "-P", "-m", f"distributed.cli.{program}", *arguments, *keys]
        with open(folder / "dask.log", "ab") as log:
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    try:
        start(
            "dask_scheduler",
            "--host",
            "tls://127.0.0.1",
            "--port",
            "0",
            "--scheduler-file",
            str(scheduler),
            "--no-dashboard",
            "--dashboard-address",
            "127.0.0.1:0",
        )
        until = time.monotonic() + SOON
        while not scheduler.exists():
            assert time.monotonic() < until, (folder / "dask.log").read_text()
            time.sleep(0.1)
        address = json.loads(scheduler.read_text())["address"]
        tls = {"ca": str(authority), "certificate": str(mine), "key": str(mine.with_suffix(".key"))}
        cluster = {"address": address, "tls": tls, "deadline": DEADLINE}
        for arguments in workers:
            start(
                "dask_worker",
                address,
                "--host",
                "tls://127.0.0.1",
                "--nthreads",
                "1",
                "--no-dashboard",
                "--local-directory",
                str(folder / "dask"),
                "--preload",
                "tasks.workers.places",
                *arguments,
            )
        with own_client(cluster) as client:
            client.wait_for_workers(len(workers) if "--nworkers" not in workers[0] else 2, timeout=SOON)
        yield cluster
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in reversed(processes):
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=SOON)


def process_ids(cluster: dict[str, object]) -> dict[str, int]:
    """The process of each worker, by its name."""
    with own_client(cluster) as client:
        found = client.run(os.getpid)
        names = {key: worker["name"] for key, worker in client.scheduler_info(n_workers=-1)["workers"].items()}
        return {str(names[key]): pid for key, pid in found.items()}
