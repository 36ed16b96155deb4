"""Scheduler, nannies and workers of our Dask clusters: they listen on loopback, by TLS, and serve no page.

Dask's pages have no authentication: everyone who reaches one reads which task runs where. So none is served, with
bokeh installed or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask
import psutil
from distributed import Nanny, Scheduler, Security, Status, Worker

from tasks.workers.credentials import Credentials

LOOPBACK = "127.0.0.1"

SETTINGS: dict[str, Any] = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.admin.system-monitor.interval": "60 s",
    "distributed.admin.tick.interval": "500 ms",
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}
"""Dask settings that turn off background work beside the rounds:

- stack samples every 10 ms, which the scheduler shows to every caller, frames of silos' code included;
- searches for tasks to move between workers, although every actor stays;
- measures of each process and its event loop, a third of the loop's work;
- HTTP pages.
"""

_PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux's <sys/prctl.h>."""

DEATHS = 3
"""Deaths of a local cluster's worker before it has joined, after which the start fails."""

FORK_AGAIN = 0.1
"""Seconds before a failed fork of a worker is repeated. A killed fork server refuses for a moment, until
`multiprocessing` finds it dead and starts another."""


def security(credentials: Credentials) -> Security:
    """Dask's security settings: TLS only, and only with peers that have a certificate of the same authority."""
    roles = ("client", "scheduler", "worker")
    files = {f"tls_{role}_cert": credentials.certificate for role in roles}
    files |= {f"tls_{role}_key": credentials.key for role in roles}
    version = {"tls_min_version": ssl.TLSVersion.TLSv1_3} if credentials.ours else {}
    return Security(require_encryption=True, tls_ca_file=credentials.authority, **files, **version)


class _NoPage:
    """Mixin for a Dask process that starts no HTTP server."""

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """Does nothing."""


class QuietScheduler(_NoPage, Scheduler):
    """A scheduler without pages."""


class QuietWorker(_NoPage, Worker):
    """A worker without pages."""


class ForkedWorker(QuietWorker):
    """A worker that ends with the process it was forked from; its nanny takes it for ended, and starts another."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if not _is_fork_server(os.getppid()):
            os._exit(1)  # the fork server died before this process set its signal
        super().__init__(*args, **kwargs)


def _is_fork_server(pid: int) -> bool:
    """True if this is the process from which `multiprocessing` forks others."""
    with contextlib.suppress(psutil.Error):
        return "multiprocessing.forkserver" in " ".join(psutil.Process(pid).cmdline())
    return False


class PatientNanny(Nanny):
    """A nanny that restarts its worker if the worker, or its fork server, dies during the start.

    Dask's own nanny gives up, and the cluster with it.
    """

    _patient = False

    async def instantiate(self) -> Status:
        starting = self.status == Status.init
        for attempt in range(1, DEATHS + 1):
            self._patient = attempt < DEATHS
            try:
                status = await super().instantiate()
            except Exception:  # EOFError, or Dask's error when it ends a process that never began
                if not self._patient:
                    raise
                status = Status.failed
            if status == Status.failed:
                self.process = None  # a half-created process is never started again
                await asyncio.sleep(FORK_AGAIN)
            elif status != Status.stopped or not starting:
                return status
        raise RuntimeError(f"worker {self.name} died {DEATHS} times before it had joined")

    async def close(self, timeout: float | None = 5, reason: str = "nanny-close") -> Any:
        if reason == "nanny-instantiate-failed":
            self.process = None  # a process that never began cannot be ended: Dask would raise an error of its own
            if self._patient:
                return "OK"
        return await super().close(5 if timeout is None else timeout, reason)


def scheduler_options(credentials: Credentials, port: int = 0) -> dict[str, Any]:
    """Arguments of a scheduler's constructor."""
    return {"host": LOOPBACK, "port": port, "protocol": "tls", "security": security(credentials), "dashboard": False}


def worker_options(credentials: Credentials) -> dict[str, Any]:
    """Arguments of the constructor of a nanny, with those for its worker."""
    return {
        "host": LOOPBACK,
        "protocol": "tls",
        "security": security(credentials),
        "nthreads": 1,
        "dashboard": False,
        "worker_class": QuietWorker,
    }


async def serve_scheduler(credentials: Credentials, port: int) -> None:
    """Runs a scheduler until SIGTERM or SIGINT."""
    _allow_files()
    with dask.config.set(SETTINGS):
        await _serve([QuietScheduler(**scheduler_options(credentials, port))])


async def serve_workers(
    credentials: Credentials, scheduler: str, workers: int, folder: Path, death_timeout: float
) -> None:
    """Runs `workers` nannies, site-0, site-1, ..., each with its worker, until SIGTERM or SIGINT.

    `death_timeout`: seconds after which a worker that finds no scheduler ends.
    """
    options = worker_options(credentials) | {"local_directory": str(folder), "death_timeout": death_timeout}
    with dask.config.set(SETTINGS):
        await _serve([Nanny(scheduler, name=f"site-{number}", **options) for number in range(workers)])


async def _serve(nodes: Sequence[Any]) -> None:
    """Returns once all nodes are finished, or a signal has closed them."""
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)

    async def finished() -> None:
        await asyncio.gather(*nodes)
        await asyncio.gather(*(node.finished() for node in nodes))

    waiting = {asyncio.create_task(finished()), asyncio.create_task(stopped.wait())}
    done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    if stopped.is_set():
        await asyncio.gather(*(node.close() for node in nodes), return_exceptions=True)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    for task in done:
        task.result()


def _allow_files() -> None:
    """Raises this process's limit of open files to half of the hard limit, as Dask's own command does."""
    if sys.platform == "linux":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard // 2), hard))
