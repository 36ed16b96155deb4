"""Services of `fedcore up`, which run until `fedcore down`: Prefect, MLflow, Dask and the deployments.

    up(home)    starts them and returns their addresses
    down(home)  ends them and all their descendants

They are detached processes without a supervisor. `services/up.json` names each (number and start), and each writes to
`services/NAME.log`. `status` shows a dead one; no process restarts it. Runs without `up` use a server of their own
(`flows.services.prefect_server`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from filelock import FileLock, Timeout

from fedcore.errors import BusyError, InputError
from fedcore.home import Home
from fedcore.process.private_files import make_private
from flows.services.leases import ProcessId, end, lease_holders, read_json
from flows.services.prefect_server import ServiceError, end_idle_server
from flows.services.start import DEADLINE, MARK, Start
from flows.services.supervisor import lease_folder, record_path, server_lock, up_path
from flows.services.up_file import addresses, complete, records


@dataclass(frozen=True)
class Up:
    """Addresses of the services, by name; `already` if all were running before."""

    addresses: dict[str, str]
    already: bool


def up(home: Home, workers: int | None = None) -> Up:
    """Starts all services of the home, waits until each one answers, and returns their addresses.

    `workers`: number of Dask workers (named site-0, site-1, ...), by default one per core. Services that are all alive
    are left as they are; if one is dead, all are started anew. If one does not start, the others are ended, and
    ServiceError names its log. Raises BusyError while another `up` or `down` is at work.
    """
    workers = _cores() if workers is None else workers
    if workers < 1:
        raise InputError(f"workers = {workers} must be at least 1")
    home.make()
    with _lock(home):
        if complete(home):
            return Up(addresses(home), already=True)
        _tear_down(home)
        try:
            Start(home, workers).run()
        except BaseException as error:  # Ctrl-C too: a partial start is undone
            _tear_down(home)
            if isinstance(error, OSError):
                raise ServiceError(f"{home.services}: services cannot be started there ({error})") from error
            raise
        return Up(addresses(home), already=False)


def down(home: Home) -> list[str]:
    """Ends all services of `up` with their descendants; returns the names of those that were alive.

    SIGTERM first, SIGKILL after 5 s. Drivers that use the services lose them (see `drivers`). A Prefect server that
    waits for the home's next driver is ended too. Raises InputError if the home is a file.
    """
    if not home.check().services.is_dir():
        return []
    with _lock(home):
        alive = _tear_down(home) if up_path(home).exists() else []
        with server_lock(home):
            return alive + ["prefect"] * end_idle_server(home)


def drivers(home: Home) -> list[int]:
    """Process numbers of the living drivers that use the home's Prefect server."""
    return sorted({process.pid for process in lease_holders(lease_folder(home))} - {os.getpid()})


@contextlib.contextmanager
def _lock(home: Home) -> Iterator[None]:
    make_private(home.services)
    lock = FileLock(home.services / "up.lock")
    try:
        lock.acquire(timeout=DEADLINE + 30)
    except Timeout as error:
        raise BusyError(f"{lock.lock_file}: another `fedcore up` or `down` is still at work") from error
    try:
        yield
    finally:
        lock.release()


def _tear_down(home: Home) -> list[str]:
    """Ends the processes of the state file and those with its mark, then removes the file."""
    state = read_json(up_path(home)) or {}
    started = list(records(home))
    alive = [name for name, _, process in started if process.alive()]
    with server_lock(home):  # from here on no driver can obtain the server
        recorded = ProcessId.read(read_json(record_path(home)) or {})
        if recorded is not None and recorded in {process for _, _, process in started}:
            record_path(home).unlink(missing_ok=True)
    # In this order, flow runs end while Prefect still listens, and workers while their scheduler does.
    for first in ("deployments", "dask-workers"):
        end([process for name, _, process in started if name == first], ask_all=first == "deployments")
    mark = state.get("mark")
    end([process for _, _, process in started], marker=f"{MARK}={mark}" if mark else None)
    up_path(home).unlink(missing_ok=True)
    return alive


def _cores() -> int:
    """Number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
