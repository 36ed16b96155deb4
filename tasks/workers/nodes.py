"""Scheduler, nannies and workers of our Dask clusters: they listen on loopback, by TLS, and serve no page.

Dask's pages know no secret: whoever reaches one reads what runs where. None is served, with bokeh installed or not.
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
"""Of what Dask does all the time beside a round: samples of all stacks every 10 ms, which show frames of silos' code to
whoever asks the scheduler, looks for tasks to move, where every actor stays, measures of each process and its event
loop, a third of what a loop does, and pages that nobody is served."""

_PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux's <sys/prctl.h>."""

DEATHS = 3
"""After as many deaths before it has joined, a worker of the local cluster is given up."""

FORK_AGAIN = 0.1
"""Seconds after which a worker is forked again that could not be: a process that was killed refuses for a moment before
`multiprocessing` sees that it is dead and starts another."""


def security(credentials: Credentials) -> Security:
    """What Dask needs to speak by TLS alone, and with those alone who have a certificate of the same authority."""
    roles = ("client", "scheduler", "worker")
    files = {f"tls_{role}_cert": credentials.certificate for role in roles}
    files |= {f"tls_{role}_key": credentials.key for role in roles}
    version = {"tls_min_version": ssl.TLSVersion.TLSv1_3} if credentials.ours else {}
    return Security(require_encryption=True, tls_ca_file=credentials.authority, **files, **version)


class _NoPage:
    """A process of Dask that starts no HTTP server."""

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """Does nothing."""


class QuietScheduler(_NoPage, Scheduler):
    """A scheduler without pages."""


class QuietWorker(_NoPage, Worker):
    """A worker without pages."""


class ForkedWorker(QuietWorker):
    """A worker that ends with the process it was forked from: to its nanny it has, and another takes its name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if not _is_fork_server(os.getppid()):
            os._exit(1)  # it died before that
        super().__init__(*args, **kwargs)


def _is_fork_server(pid: int) -> bool:
    """Whether this is a process that `multiprocessing` forks others from."""
    with contextlib.suppress(psutil.Error):
        return "multiprocessing.forkserver" in " ".join(psutil.Process(pid).cmdline())
    return False


class PatientNanny(Nanny):
    """A nanny that makes its worker again if it dies while it starts, or if whom it is forked from does; Dask's own
    gives up, and the cluster with it."""

    _patient = False

    async def instantiate(self) -> Status:
        starting = self.status == Status.init
        for attempt in range(1, DEATHS + 1):
            self._patient = attempt < DEATHS
            try:
                status = await super().instantiate()
            except Exception:  # EOFError, or what Dask makes of an OSError when it ends a process that never began
                if not self._patient:
                    raise
                status = Status.failed
            if status == Status.failed:
                self.process = None  # what was half made is never started again
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
    """What a scheduler is made with."""
    return {"host": LOOPBACK, "port": port, "protocol": "tls", "security": security(credentials), "dashboard": False}


def worker_options(credentials: Credentials) -> dict[str, Any]:
    """What a nanny and its worker are made with."""
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
    """Lets this process have as many connections as half of what its operator allows, as Dask's own command does."""
    if sys.platform == "linux":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard // 2), hard))
