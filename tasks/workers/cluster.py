"""The Dask cluster: a scheduler and workers of this process, or a client of a running scheduler.

Only this module, `nodes`, `places` and `sites` import dask or distributed.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import dask
import distributed.utils
from distributed import Client, SpecCluster

from fedcore.errors import InputError
from fedcore.experiment.config import ClusterConfig
from fedcore.memory import KEEP_MEMORY
from fedcore.process.import_path import keep_working_folder_out, safe_environment
from tasks.workers.credentials import Credentials, named, temporary
from tasks.workers.nodes import (
    SETTINGS,
    ForkedWorker,
    PatientNanny,
    QuietScheduler,
    scheduler_options,
    security,
    worker_options,
)

logging.getLogger("distributed").setLevel(logging.CRITICAL)  # a refused handshake becomes an InputError here
logging.getLogger("tornado.application").setLevel(logging.CRITICAL)

FORKS = sys.platform == "linux"
"""True if workers are forks of one process that has done the imports. A fork saves two seconds of processor time for
each worker, and replaces a dead one within a tenth of a second."""

JOIN_DEADLINE = 60.0
"""Seconds within which all workers of the local cluster are present, once each has joined for the first time."""


def _fork_from_a_server() -> None:
    """Sets the imports of the process that workers are forked from; it starts with the first worker."""
    # Dask's own list has all packages that Dask can use, and Dask imports them here to see if they are installed.
    distributed.utils._forkserver_preload_set = True
    multiprocessing.get_context("forkserver").set_forkserver_preload(["tasks.workers.cluster", "tasks.workers.holder"])


@contextlib.contextmanager
def local_cluster(workers: int) -> Iterator[Client]:
    """A scheduler in this process and `workers` processes site-0, site-1, ... with one thread each.

    Raises InputError if a worker fails to start, or is killed `DEATHS` times while it starts.
    """
    # Workers log at INFO unless they find this when they first import dask.
    os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "critical")
    keep_working_folder_out()  # `multiprocessing` passes `sys.path` and this environment to its processes
    # Dask's default drops a worker for good that is not back within 15 s; here cluster.deadline decides.
    timeouts = {"distributed.comm.timeouts.connect": "10s", "distributed.deploy.lost-worker-timeout": "1 day"}
    memory = {f"distributed.nanny.pre-spawn-environ.{name}": value for name, value in KEEP_MEMORY.items()}
    settings: dict[str, Any] = timeouts | memory | SETTINGS
    if FORKS:
        _fork_from_a_server()
        settings["distributed.worker.multiprocessing-method"] = "forkserver"
    keys = temporary()
    with contextlib.ExitStack() as stack:
        # Dask puts its servers' folders first on the import path, so no other account may write there.
        settings["temporary-directory"] = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="fedcore-dask-", ignore_cleanup_errors=True)
        )
        stack.enter_context(dask.config.set(settings))
        # The process that workers are forked from has the environment of the first cluster's start.
        environment = safe_environment(os.environ)
        options: dict[str, Any] = worker_options(keys) | {"memory_limit": 0, "env": environment}
        if FORKS:
            options["worker_class"] = ForkedWorker
        spec = {f"site-{i}": {"cls": PatientNanny, "options": options} for i in range(workers)}
        scheduler = {"cls": QuietScheduler, "options": scheduler_options(keys)}
        try:
            client = stack.enter_context(_begun(spec, scheduler, keys))
        except (OSError, RuntimeError, TimeoutError) as error:
            cause = list(_causes(error))[-1]
            raise InputError(
                f"cluster.workers = {workers}: the local cluster did not start ({str(cause) or repr(cause)}); see what "
                "ends its processes (too little memory?), ask for fewer workers, or set cluster.backend=in-process"
            ) from error
        yield client


@contextlib.contextmanager
def _begun(workers: dict[str, Any], scheduler: dict[str, Any], keys: Credentials) -> Iterator[Client]:
    """A client of a new cluster whose workers have all joined."""
    with contextlib.ExitStack() as stack:
        made = SpecCluster(workers, scheduler, security=security(keys), silence_logs=logging.CRITICAL)
        cluster = stack.enter_context(made)
        # Not as this context's current client: a caller may start the cluster in one context and end it in another.
        client = stack.enter_context(contextlib.closing(Client(cluster, direct_to_workers=True)))
        # By itself a nanny ignores a death of its worker between the worker's joining and the nanny's own start.
        for nanny in cluster.workers.values():
            cluster.sync(nanny.instantiate)
        client.wait_for_workers(len(workers), timeout=JOIN_DEADLINE)
        yield client


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and its causes, the nearest first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@contextlib.contextmanager
def own_cluster(config: ClusterConfig, deadline: float = 10.0) -> Iterator[Client]:
    """A client of the scheduler at `config.address`, with the keys that the config names.

    Raises InputError for missing or wrong keys, for a scheduler without TLS that the config does not allow, and as
    `remote_cluster` does.
    """
    address = config.address or ""
    if address.startswith("tls://"):
        if config.tls is None:
            raise InputError(
                f"cluster.address = {address} needs keys: name the files of your cluster in cluster.tls "
                "(ca, certificate, key)"
            )
        keys = named(config.tls)
    elif not config.insecure:
        raise InputError(
            f"cluster.address = {address}: without TLS, whoever reaches the scheduler, as every account of its machine "
            "does, runs code where records are open; start it with TLS (tls://host:port) and name its keys in "
            "cluster.tls, use `fedcore up`, or take the risk with cluster.insecure=true"
        )
    else:
        keys = None
    with remote_cluster(address, keys, deadline) as client:
        yield client


@contextlib.contextmanager
def remote_cluster(address: str, keys: Credentials | None, deadline: float = 10.0) -> Iterator[Client]:
    """A client of a running scheduler, by TLS if there are keys.

    Raises InputError if no scheduler answers at `address`, one side refuses the other's certificate, or there is no
    worker.
    """
    secured = None
    try:
        if keys is not None:
            secured = security(keys)
            _check_handshake(address, secured.get_connection_args("client")["ssl_context"], deadline)
        client = Client(address, timeout=deadline, direct_to_workers=True, security=secured)
    except InputError:
        raise
    except ssl.SSLError as error:
        raise InputError(f"cluster.address = {address}: its keys cannot be used ({_reason(error)})") from None
    except (OSError, ValueError, TimeoutError):
        raise InputError(
            f"cluster.address = {address}: no Dask scheduler answers there within {deadline:g} s; start one "
            "(`fedcore up`), correct the address (tls://host:port), or leave it out for a local cluster"
        ) from None
    with contextlib.closing(client):  # as in `_begun`
        if not worker_addresses(client):
            raise InputError(f"cluster.address = {address}: the Dask scheduler has no worker")
        yield client


def _check_handshake(address: str, context: ssl.SSLContext, deadline: float) -> None:
    """Raises InputError, with the reason, unless both sides accept each other; OSError without an answer in time.

    Dask would only retry, and report no reason.
    """
    scheme, _, place = address.partition("://")
    host, _, port = place.rpartition(":")
    if scheme != "tls" or not port.isdigit():
        raise InputError(f"cluster.address = {address} is no address of TLS: tls://host:port")
    until = time.monotonic() + deadline
    with _connected(host.strip("[]"), int(port), until) as plain:
        try:
            secured = context.wrap_socket(plain)
        except ssl.SSLCertVerificationError as error:
            raise InputError(
                f"cluster.address = {address}: the scheduler's certificate is not accepted ({error.verify_message}); "
                "cluster.tls.ca must name the authority of its cluster"
            ) from None
        except ssl.SSLError as error:
            raise InputError(f"cluster.address = {address}: no handshake by TLS ({_reason(error)})") from None
        with secured:
            try:
                # In TLS 1.3 a refusal of the client arrives after its handshake. Dask's server sends the first byte.
                answered = secured.recv(1)
            except TimeoutError:
                raise
            except OSError as error:
                refusal = _reason(error)
            else:
                refusal = "" if answered else "it hung up"
            if refusal:
                raise InputError(
                    f"cluster.address = {address}: the scheduler does not accept cluster.tls.certificate ({refusal}); "
                    "it must be signed by the authority that the cluster trusts"
                )


def _connected(host: str, port: int, until: float) -> socket.socket:
    """A connection to the address as soon as a process listens there. Raises OSError if none does by `until`."""
    while True:
        left = max(0.05, until - time.monotonic())
        try:
            return socket.create_connection((host, port), timeout=left)
        except OSError:
            if time.monotonic() + 0.1 > until:
                raise
            time.sleep(0.1)


def _reason(error: OSError) -> str:
    """OpenSSL's name of the error, as words."""
    reason = getattr(error, "reason", None) or error.strerror or type(error).__name__
    return str(reason).replace("_", " ").lower()


def joined(address: str, keys: Credentials) -> int:
    """The number of workers at a scheduler; 0 if it does not answer."""
    try:
        with remote_cluster(address, keys, deadline=2.0) as client:
            return len(worker_addresses(client))
    except InputError:
        return 0


def worker_addresses(client: Client) -> dict[str, str]:
    """Address of each worker by its name, in a fixed order of names."""
    # Read from the scheduler itself: `client.scheduler_info` reads a field that a periodic callback of the client
    # overwrites every two seconds with an answer without workers.
    scheduler = client.scheduler
    if scheduler is None:
        raise InputError("the Dask client is closed")
    workers = client.sync(scheduler.identity, n_workers=-1)["workers"].items()
    found = {str(worker["name"]): address for address, worker in workers}
    return {name: found[name] for name in sorted(found, key=lambda name: (len(name), name))}
