"""What `fedcore up` keeps running until `fedcore down`: Prefect, MLflow, Dask and the deployments.

    up(home)               starts them and returns their addresses
    status(home)           what is alive
    active_services(home)  the addresses a run should use, None if nothing is up
    down(home)             ends them, and all that descends from them

Nobody watches over them: they are detached processes, `services/up.json` names each (number and start), each
writes to `services/NAME.log`, and a dead one is shown by `status`, not restarted. Runs without `up` use a server of
their own (`flows.services.prefect_server`).
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from fedcore.errors import BusyError, InputError
from fedcore.home import Home
from flows.services.environment import child_environment, prefect_environment
from flows.services.leases import ProcessId, end, lease_holders, read_json, spawn, write_json
from flows.services.prefect_server import (
    ServiceError,
    answers,
    complaint,
    end_idle_server,
    listen,
    start_prefect_server,
)
from flows.services.supervisor import lease_folder, record_path, server_lock, up_path

DEADLINE = 90.0  # seconds for any one service to answer
MARK = "FEDCORE_UP"  # in the environment of all that `up` starts: how `down` finds orphaned descendants
DEPLOYMENTS = "flows.deployments"
REQUIRED = ("prefect", "mlflow", "dask", "dask-workers")
# Many BLAS threads per worker fight for the cores: 20 times slower was measured.
ONE_THREAD = {name: "1" for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}


@dataclass(frozen=True)
class Up:
    """What is up: an address per service; `already` if nothing had to be started."""

    addresses: dict[str, str]
    already: bool


def up(home: Home, workers: int | None = None) -> Up:
    """Starts all services of the home, waits until each one answers, and returns their addresses.

    `workers`: number of Dask workers (named site-0, site-1, ...), by default one per core. If all is up
    already, nothing is started. If a part of it is dead, all of it is started anew. If one does not start,
    those that did are ended and ServiceError names the log. Raises BusyError while another `up` or `down` is
    at work.
    """
    workers = _cores() if workers is None else workers
    if workers < 1:
        raise InputError(f"workers = {workers} must be at least 1")
    home.make()
    with _lock(home):
        if _complete(home):
            return Up(_addresses(home), already=True)
        _tear_down(home)
        try:
            _Start(home, workers).run()
        except BaseException as error:  # Ctrl-C too: nothing half-started stays behind
            _tear_down(home)
            if isinstance(error, OSError):
                raise ServiceError(f"{home.services}: services cannot be started there ({error})") from error
            raise
        return Up(_addresses(home), already=False)


def down(home: Home) -> list[str]:
    """Ends all that `up` started, with all descendants, and returns the names of what was still alive.

    SIGTERM first, SIGKILL after 5 s. A driver that uses the services loses them: see `drivers`. A Prefect server that
    waits for the home's next driver is ended too.
    """
    if not home.services.is_dir():
        return []
    with _lock(home):
        alive = _tear_down(home) if up_path(home).exists() else []
        with server_lock(home):
            return alive + ["prefect"] * end_idle_server(home)


def status(home: Home) -> dict[str, dict[str, Any]]:
    """Per service of `up`: `address`, `pid`, `alive` and `log`; empty if nothing is up."""
    return {
        name: {
            "address": record.get("address"),
            "pid": record.get("pid"),
            "alive": process.alive(),
            "log": str(home.services / f"{name}.log"),
        }
        for name, record, process in _records(home)
    }


def active_services(home: Home) -> dict[str, str] | None:
    """Addresses of what is up and alive, by `prefect` (API), `mlflow` and `dask`; None if nothing is up.

    Asks no network: a service that lives but hangs is listed.
    """
    if (read_json(up_path(home)) or {}).get("state") != "up":
        return None
    alive = {name for name, _, process in _records(home) if process.alive()}
    if "dask-workers" not in alive:
        alive.discard("dask")  # a scheduler without workers would let every call wait for ever
    found = {name: url for name, url in _addresses(home).items() if name in alive and name != "deployments"}
    return found or None


def drivers(home: Home) -> list[int]:
    """Process numbers of the living drivers that use the home's Prefect server."""
    return sorted({process.pid for process in lease_holders(lease_folder(home))} - {os.getpid()})


@contextlib.contextmanager
def _lock(home: Home) -> Iterator[None]:
    home.services.mkdir(parents=True, exist_ok=True)
    lock = FileLock(home.services / "up.lock")
    try:
        lock.acquire(timeout=DEADLINE + 30)
    except Timeout as error:
        raise BusyError(f"{lock.lock_file}: another `fedcore up` or `down` is still at work") from error
    try:
        yield
    finally:
        lock.release()


def _records(home: Home) -> Iterator[tuple[str, dict[str, Any], ProcessId]]:
    services = (read_json(up_path(home)) or {}).get("services")
    for name, record in (services if isinstance(services, dict) else {}).items():
        process = ProcessId.read(record) if isinstance(record, dict) else None
        if process is not None:
            yield name, record, process


def _addresses(home: Home) -> dict[str, str]:
    return {name: record["address"] for name, record, _ in _records(home) if record.get("address")}


def _complete(home: Home) -> bool:
    """Whether a finished `up` is there, and all that it started is alive."""
    alive = {name: process.alive() for name, _, process in _records(home)}
    finished = (read_json(up_path(home)) or {}).get("state") == "up"
    return finished and all(alive.values()) and set(REQUIRED) <= set(alive)


def _tear_down(home: Home) -> list[str]:
    """Ends what the state file names and what carries its mark, then removes the file."""
    state = read_json(up_path(home)) or {}
    records = list(_records(home))
    alive = [name for name, _, process in records if process.alive()]
    with server_lock(home):  # no driver may be handed the server from here on
        recorded = ProcessId.read(read_json(record_path(home)) or {})
        if recorded is not None and recorded in {process for _, _, process in records}:
            record_path(home).unlink(missing_ok=True)
    # In order of need: flow runs end while Prefect still listens, workers while their scheduler does.
    for first in ("deployments", "dask-workers"):
        end([process for name, _, process in records if name == first], ask_all=first == "deployments")
    mark = state.get("mark")
    end([process for _, _, process in records], marker=f"{MARK}={mark}" if mark else None)
    up_path(home).unlink(missing_ok=True)
    return alive


class _Start:
    """One start of all services; every process is in the state file before the next one is made."""

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
            dashboard = self.dask_scheduler()
            self.dask_workers()
            server.wait(DEADLINE)
            mlflow = self.state["services"]["mlflow"]["address"]
            self.wait("mlflow", lambda: answers(f"{mlflow}/health", timeout=2.0))
            self.wait("dask-workers", lambda: _workers(dashboard) >= self.workers)
            # Before the deployments: a run that they start at once must find the services.
            self.state["state"] = "up"
            write_json(up_path(self.home), self.state)
            self.deployments(server.url)
        finally:
            server.release()

    def enter(self, name: str, process: ProcessId, address: str | None) -> None:
        self.state["services"][name] = asdict(process) | {"address": address}
        write_json(up_path(self.home), self.state)

    def spawn(self, name: str, module: str, *arguments: str, address: str | None, **variables: str) -> None:
        process = spawn(
            [sys.executable, "-P", "-m", module, *arguments],  # -P: no file of the working folder shadows it
            log=self.home.services / f"{name}.log",
            environment=self.environment | variables,
        )
        self.enter(name, process, address)

    def mlflow(self) -> None:
        self.home.mlflow_artifacts.mkdir(exist_ok=True)
        port = _free_port(5000)
        self.spawn(
            "mlflow", "mlflow", "server", "--backend-store-uri", self.home.mlflow_uri,
            "--default-artifact-root", str(self.home.mlflow_artifacts), "--host", "127.0.0.1",
            "--port", str(port), "--workers", "1",
            address=f"http://127.0.0.1:{port}",
            MLFLOW_DISABLE_TELEMETRY="true",
            MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false",  # a queue and its processes that nothing here uses
        )  # fmt: skip

    def dask_scheduler(self) -> str:
        """Starts the scheduler; returns the address of its page (JSON only, unless bokeh is installed)."""
        port = _free_port(8786)
        page = _free_port(port + 1)
        bokeh = importlib.util.find_spec("bokeh") is not None
        self.spawn(
            "dask", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port),
            "--dashboard" if bokeh else "--no-dashboard", "--dashboard-address", f"127.0.0.1:{page}",
            address=f"tcp://127.0.0.1:{port}",
            **ONE_THREAD,
        )  # fmt: skip
        return f"http://127.0.0.1:{page}"

    def dask_workers(self) -> None:
        """One process with a nanny per worker; the workers are its children. They wait for the scheduler."""
        from tasks.cluster import KEEP_MEMORY  # loads Dask, which only this needs

        # Dask numbers the names itself, but only if there are several.
        name = "site" if self.workers > 1 else "site-0"
        self.spawn(
            "dask-workers", "distributed.cli.dask_worker", self.state["services"]["dask"]["address"],
            "--host", "127.0.0.1", "--nworkers", str(self.workers), "--nthreads", "1", "--name", name,
            "--no-dashboard", "--dashboard-address", "127.0.0.1:0", "--death-timeout", f"{DEADLINE:.0f}",
            "--local-directory", str(self.home.services / "dask"),
            address=None,
            **ONE_THREAD, **KEEP_MEMORY,
        )  # fmt: skip

    def deployments(self, prefect_url: str) -> None:
        """Starts what runs flows for the Prefect page, and waits until it asks Prefect for work.

        It has no address of its own. Does nothing if this project has no such module.
        """
        if importlib.util.find_spec(DEPLOYMENTS) is None:
            return
        since = datetime.now(UTC)
        variables = prefect_environment(self.home) | {"PREFECT_API_URL": prefect_url}
        self.spawn("deployments", DEPLOYMENTS, address=None, **variables)
        self.wait("deployments", lambda: _polled(prefect_url, since))

    def wait(self, name: str, ready: Callable[[], bool]) -> None:
        """Returns when a service is ready. Raises ServiceError if any of them dies, or at the deadline."""
        limit = time.monotonic() + DEADLINE
        while not ready():
            for other, _, process in _records(self.home):
                if not process.alive():
                    raise self.failure(other, "ended while it was starting")
            if time.monotonic() > limit:
                raise self.failure(name, f"not ready within {DEADLINE:.0f} s")
            time.sleep(0.1)

    def failure(self, name: str, what: str) -> ServiceError:
        log = self.home.services / f"{name}.log"
        return ServiceError(f"{name}: {what}; see {log} ({complaint(log)})")


def _cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _free_port(preferred: int) -> int:
    """A port that nobody listens on now: the preferred one, one of the next, or any."""
    with listen(preferred) as listening:
        return int(listening.getsockname()[1])


def _workers(dashboard: str) -> int:
    """The number of workers that have joined the scheduler; 0 if it does not answer."""
    counts = _json("GET", f"{dashboard}/json/counts.json")
    return int(counts.get("workers", 0)) if isinstance(counts, dict) else 0


def _polled(prefect_url: str, since: datetime) -> bool:
    """Whether any deployment has asked for work since a time: then somebody serves it."""
    found = _json("POST", f"{prefect_url}/deployments/filter", "{}")
    times = [item.get("last_polled") for item in found] if isinstance(found, list) else []
    return any(time and datetime.fromisoformat(time) >= since for time in times)


def _json(method: str, url: str, body: str | None = None) -> Any:
    """The JSON value that `url` answers with; None if there is no such answer."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=2.0)
    try:
        headers = {"Connection": "close", "Content-Type": "application/json"}
        connection.request(method, parts.path, body, headers)
        return json.loads(connection.getresponse().read())
    except (OSError, HTTPException, ValueError):
        return None
    finally:
        connection.close()
