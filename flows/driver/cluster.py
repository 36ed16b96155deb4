"""Dask cluster of one driver: one at a time, shared by runs with the same cluster section."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from fedcore.experiment.config import ClusterConfig
from fedcore.home import Home
from flows.services.up_file import active_services


class DriverCluster:
    """Cluster that is opened for the first run that needs it. `pool`: holders of its sites' silos."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._stack = contextlib.ExitStack()
        self._client: tuple[ClusterConfig, Any] | None = None
        self._starting: tuple[ClusterConfig, Future[tuple[contextlib.ExitStack, Any]]] | None = None
        self.pool: Any = None

    def client(self, config: ClusterConfig) -> Any:
        """A client of the config's cluster: its address, else that of `fedcore up`, else a local one."""
        if self._client is not None and self._client[0] == config:
            return self._client[1]
        from tasks.workers.holder import HolderPool

        if self._starting is not None and self._starting[0] == config:
            made = self._starting[1].result()
            self._starting = None
        else:
            self.close()
            made = self._cluster(config)
        self._stack, client = made
        self.pool = HolderPool()
        self._client = (config, client)
        return client

    def warm(self, config: ClusterConfig) -> None:
        """Starts the cluster of the first run in a thread, while the driver prepares the run."""
        if config.backend == "dask" and self._client is None and self._starting is None:
            thread = ThreadPoolExecutor(1, "fedcore-cluster")
            self._starting = config, thread.submit(self._cluster, config)
            thread.shutdown(wait=False)

    def _cluster(self, config: ClusterConfig) -> tuple[contextlib.ExitStack, Any]:
        """Stack that closes cluster and client, and the client. Raises InputError if the cluster does not answer."""
        from tasks.workers.cluster import local_cluster, own_cluster, remote_cluster
        from tasks.workers.credentials import read

        with contextlib.ExitStack() as stack:
            if config.address is not None:
                client = stack.enter_context(own_cluster(config))
            elif (address := (active_services(self._home) or {}).get("dask")) is not None:
                client = stack.enter_context(remote_cluster(address, read(self._home.cluster_keys)))
            else:
                client = stack.enter_context(local_cluster(config.workers))
            return stack.pop_all(), client

    def close(self) -> None:
        """Closes cluster and client. Safe to call again."""
        if self.pool is not None:
            self.pool.close()
        if self._starting is not None:
            starting, self._starting = self._starting[1], None
            with contextlib.suppress(Exception):  # no run has used it
                starting.result()[0].close()
        self._client = self.pool = None
        self._stack.close()
        self._stack = contextlib.ExitStack()
