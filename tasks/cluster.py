"""The Dask cluster: a scheduler and workers of this process's own, or a client of one that runs somewhere.

This file, `tasks.places` and `tasks.sites` are the only ones that import dask or distributed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import dask
import distributed.utils
import psutil
from distributed import Client, Nanny, Scheduler, SpecCluster, Status, Worker

from fedcore.errors import InputError
from fedcore.import_path import keep_working_folder_out, safe_environment
from fedcore.memory import KEEP_MEMORY

UNWATCHED = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.admin.system-monitor.interval": "60 s",
    "distributed.admin.tick.interval": "500 ms",
    "distributed.scheduler.work-stealing": False,
}
"""Of what Dask does all the time beside a round: samples of all stacks every 10 ms, which show frames of silos' code to
whoever asks the scheduler, looks for tasks to move, where every actor stays, and measures of each process and its event
loop, a third of what a loop does."""

FORKS = sys.platform == "linux"
"""Whether workers are forks of one process that has imported what they need, two seconds of processor time each
otherwise, and one that died is back in a tenth of a second."""

_PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux's <sys/prctl.h>."""

DEATHS = 3
"""After as many deaths before it has joined, a worker of the local cluster is given up."""

FORK_AGAIN = 0.1
"""Seconds after which a worker is forked again that could not be: a process that was killed refuses for a moment before
`multiprocessing` sees that it is dead and starts another."""

JOIN_DEADLINE = 60.0
"""Seconds for the workers of the local cluster to be there once each has joined for the first time."""


class _PatientNanny(Nanny):
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


class _ForkedWorker(Worker):
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


def _fork_from_a_server() -> None:
    """Says what the process imports that workers are forked from; it starts with the first of them."""
    # Dask would have it import all that Dask can use, and import that here to see whether it is there.
    distributed.utils._forkserver_preload_set = True
    multiprocessing.get_context("forkserver").set_forkserver_preload(["tasks.cluster", "tasks.holder"])


@contextlib.contextmanager
def local_cluster(workers: int) -> Iterator[Client]:
    """A scheduler in this process and `workers` processes site-0, site-1, ... with one thread each.

    Raises InputError if a worker fails to start, or is killed `DEATHS` times while it does.
    """
    # Workers log at INFO unless they find this when they first import dask.
    os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "critical")
    keep_working_folder_out()  # `multiprocessing` hands `sys.path` and this environment to what it starts
    # A cluster of Dask gives up a worker that is not back within 15 s, for good; here the deadline decides.
    timeouts = {"distributed.comm.timeouts.connect": "10s", "distributed.deploy.lost-worker-timeout": "1 day"}
    memory = {f"distributed.nanny.pre-spawn-environ.{name}": value for name, value in KEEP_MEMORY.items()}
    settings: dict[str, Any] = timeouts | memory | UNWATCHED
    if FORKS:
        _fork_from_a_server()
        settings["distributed.worker.multiprocessing-method"] = "forkserver"
    with contextlib.ExitStack() as stack:
        # Dask puts the folders of its servers first on the import path: never one below which others write.
        settings["temporary-directory"] = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="fedcore-dask-", ignore_cleanup_errors=True)
        )
        stack.enter_context(dask.config.set(settings))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # "Port 8787 is already in use": any port will do
        # The process that workers are forked from keeps the environment in which the first cluster began.
        environment = safe_environment(os.environ)
        options: dict[str, Any] = {"nthreads": 1, "memory_limit": 0, "host": "127.0.0.1", "env": environment}
        if FORKS:
            options["worker_class"] = _ForkedWorker
        spec = {f"site-{i}": {"cls": _PatientNanny, "options": options} for i in range(workers)}
        scheduler = {"cls": Scheduler, "options": {"host": "127.0.0.1", "port": 0, "dashboard_address": ":0"}}
        try:
            client = stack.enter_context(_begun(spec, scheduler))
        except (OSError, RuntimeError, TimeoutError) as error:
            said = list(_causes(error))[-1]
            raise InputError(
                f"cluster.workers = {workers}: the local cluster did not start ({str(said) or repr(said)}); see what "
                "ends its processes (too little memory?), ask for fewer workers, or set cluster.backend=in-process"
            ) from error
        yield client


@contextlib.contextmanager
def _begun(workers: dict[str, Any], scheduler: dict[str, Any]) -> Iterator[Client]:
    """A client of a new cluster whose workers have all joined."""
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(SpecCluster(workers, scheduler, silence_logs=logging.CRITICAL))
        # Not as this context's current client: who starts the cluster beside other work ends it elsewhere.
        client = stack.enter_context(contextlib.closing(Client(cluster, direct_to_workers=True)))
        # Unless it is asked, a nanny does nothing about a death after its worker joined and before it runs itself.
        for nanny in cluster.workers.values():
            cluster.sync(nanny.instantiate)
        client.wait_for_workers(len(workers), timeout=JOIN_DEADLINE)
        yield client


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it came from, the nearest first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@contextlib.contextmanager
def remote_cluster(address: str, deadline: float = 10.0) -> Iterator[Client]:
    """A client of a running scheduler. Raises InputError if nobody answers at `address` or it has no worker."""
    try:
        client = Client(address, timeout=deadline, direct_to_workers=True)
    except (OSError, ValueError, TimeoutError):
        raise InputError(
            f"cluster.address = {address}: no Dask scheduler answers there within {deadline:g} s; start one "
            "(`fedcore up`), correct the address (tcp://host:port), or leave it out for a local cluster"
        ) from None
    with contextlib.closing(client):  # as in `_begun`
        if not worker_addresses(client):
            raise InputError(f"cluster.address = {address}: the Dask scheduler has no worker")
        yield client


def worker_addresses(client: Client) -> dict[str, str]:
    """Address of each worker by its name, in a fixed order of names."""
    # Asked of the scheduler itself: `client.scheduler_info` reads a field that a periodic callback of the client
    # overwrites every two seconds with an answer without workers.
    scheduler = client.scheduler
    if scheduler is None:
        raise InputError("the Dask client is closed")
    workers = client.sync(scheduler.identity, n_workers=-1)["workers"].items()
    found = {str(worker["name"]): address for address, worker in workers}
    return {name: found[name] for name in sorted(found, key=lambda name: (len(name), name))}
