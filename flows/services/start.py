"""Start of the services of `fedcore up`: spawns each, records it, and waits until it is ready."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

from fedcore.home import Home
from fedcore.limits import LARGEST_TEXT
from fedcore.memory import KEEP_MEMORY
from flows.services.environment import child_environment, prefect_environment
from flows.services.leases import ProcessId, spawn, write_json
from flows.services.prefect_server import ServiceError, answers, complaint, listen, start_prefect_server
from flows.services.secret import authorization
from flows.services.supervisor import up_path
from flows.services.up_file import records
from tasks.workers.credentials import write

DEADLINE = 90.0  # seconds for any one service to answer
MARK = "FEDCORE_UP"  # in the environment of all processes of `up`, so that `down` finds orphaned descendants
DEPLOYMENTS = "flows.deployed.deployments"
# Many BLAS threads per worker fight for the cores: 20 times slower was measured.
ONE_THREAD = {name: "1" for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}


class Start:
    """One start of all services. Each process is recorded in the state file before the next one starts."""

    def __init__(self, home: Home, workers: int) -> None:
        self.home, self.workers = home, workers
        self.state: dict[str, Any] = {"state": "starting", "mark": uuid.uuid4().hex, "services": {}}
        self.environment = child_environment(home) | {MARK: self.state["mark"]}

    def run(self) -> None:
        write_json(up_path(self.home), self.state)  # from here on the Prefect server needs no driver
        server = start_prefect_server(self.home, port=4200, event_feed=True)
        try:
            self.enter("prefect", server.process, server.url)
            self.mlflow()
            self.dask_scheduler()
            self.dask_workers()
            server.wait(DEADLINE)
            mlflow = self.state["services"]["mlflow"]["address"]
            self.wait("mlflow", lambda: answers(f"{mlflow}/health", self.home, timeout=2.0))
            self.wait("dask-workers", lambda: self.joined() >= self.workers)
            # Before the deployments start: their first run must find the services.
            self.state["state"] = "up"
            write_json(up_path(self.home), self.state)
            self.deployments(server.url)
        finally:
            server.release()

    def enter(self, name: str, process: ProcessId, address: str | None) -> None:
        self.state["services"][name] = asdict(process) | {"address": address}
        write_json(up_path(self.home), self.state)

    def spawn(
        self, name: str, module: str, *arguments: str, address: str | None, folder: str | None = "/", **variables: str
    ) -> None:
        process = spawn(
            [sys.executable, "-P", "-m", module, *arguments],  # -P: no file of the working folder shadows it
            log=self.home.services / f"{name}.log",
            environment=self.environment | variables,
            folder=folder,
        )
        self.enter(name, process, address)

    def mlflow(self) -> None:
        self.home.mlflow_artifacts.mkdir(exist_ok=True)
        with listen(5000) as listening:
            # The socket is passed on, so that no other process can take the port.
            inherited = str(listening.fileno())
            process = spawn(
                [sys.executable, "-P", "-m", "flows.services.mlflow_page", str(self.home.root), inherited],
                log=self.home.services / "mlflow.log",
                environment=self.environment,
                pass_fds=[listening.fileno()],
            )
            self.enter("mlflow", process, f"http://127.0.0.1:{listening.getsockname()[1]}")

    def dask_scheduler(self) -> None:
        """Starts the scheduler with new keys for its workers and this home's drivers."""
        self.keys = write(self.home.cluster_keys)
        port = _free_port(8786)
        self.spawn(
            "dask",
            "tasks.workers.dask_services",
            "--keys",
            str(self.home.cluster_keys),
            "scheduler",
            "--port",
            str(port),
            address=f"tls://127.0.0.1:{port}",
            **ONE_THREAD,
        )

    def dask_workers(self) -> None:
        """Starts a process with a nanny per worker, whose children the workers are. They wait for the scheduler."""
        self.spawn(
            "dask-workers",
            "tasks.workers.dask_services",
            "--keys",
            str(self.home.cluster_keys),
            "workers",
            "--scheduler",
            self.state["services"]["dask"]["address"],
            "--workers",
            str(self.workers),
            "--folder",
            str(self.home.services / "dask"),
            "--death-timeout",
            f"{DEADLINE:.0f}",
            address=None,
            **ONE_THREAD,
            **KEEP_MEMORY,
        )

    def joined(self) -> int:
        """Number of workers that have joined the scheduler; 0 if it does not answer."""
        from tasks.workers.cluster import joined  # imported late: Dask is slow to import, and not needed if all is up

        return joined(self.state["services"]["dask"]["address"], self.keys)

    def deployments(self, prefect_url: str) -> None:
        """Starts the process of the deployments, and waits until it asks Prefect for work.

        The process has no address. Does nothing if the module is not installed.
        """
        if importlib.util.find_spec(DEPLOYMENTS) is None:
            return
        since = datetime.now(UTC)
        variables = prefect_environment(self.home) | {"PREFECT_API_URL": prefect_url} | KEEP_MEMORY
        self.spawn("deployments", DEPLOYMENTS, address=None, folder=None, **variables)  # configs name relative paths
        self.wait("deployments", lambda: _polled(self.home, prefect_url, since))

    def wait(self, name: str, ready: Callable[[], bool]) -> None:
        """Returns when the service is ready. Raises ServiceError if any service dies, or at the deadline."""
        limit = time.monotonic() + DEADLINE
        while not ready():
            for other, _, process in records(self.home):
                if not process.alive():
                    raise self.failure(other, "ended while it was starting")
            if time.monotonic() > limit:
                raise self.failure(name, f"not ready within {DEADLINE:.0f} s")
            time.sleep(0.1)

    def failure(self, name: str, reason: str) -> ServiceError:
        log = self.home.services / f"{name}.log"
        return ServiceError(f"{name}: {reason}; see {log} ({complaint(log)})")


def _free_port(preferred: int) -> int:
    """A port without a listener: the preferred one, one of the next, or any."""
    with listen(preferred) as listening:
        return int(listening.getsockname()[1])


def _polled(home: Home, prefect_url: str, since: datetime) -> bool:
    """True if a deployment has asked for work since a time, so that a process serves it."""
    known = {"Authorization": authorization(home, prefect_url)}
    found = _json("POST", f"{prefect_url}/deployments/filter", "{}", known)
    times = [item.get("last_polled") for item in found] if isinstance(found, list) else []
    return any(time and datetime.fromisoformat(time) >= since for time in times)


def _json(method: str, url: str, body: str | None = None, known: Mapping[str, str] | None = None) -> Any:
    """The JSON value in the answer of `url`; None without an answer or a value."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=2.0)
    try:
        headers = {"Connection": "close", "Content-Type": "application/json", **(known or {})}
        connection.request(method, parts.path, body, headers)
        return json.loads(connection.getresponse().read(LARGEST_TEXT))
    except (OSError, HTTPException, ValueError):
        return None
    finally:
        connection.close()
