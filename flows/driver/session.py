"""Resources that a driver's runs share: home, data, MLflow's writer, Dask cluster, sites, progress."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedcore.data.dataset import Dataset, prepare
from fedcore.data.silo_file import Released
from fedcore.experiment.config import ClusterConfig, ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.experiment.released.statistic import Eigenvalues
from fedcore.experiment.statistics import statistics_id
from fedcore.experiment.statistics_run import StatisticsRun
from fedcore.federation.in_process import Backend, SitePool
from fedcore.home import Home
from flows.cells.flow_runs import CellFlowRuns
from flows.cells.prefect_rows import CellFlowRows
from flows.driver.cluster import DriverCluster
from flows.recorded.former_ids import RecordedRuns
from flows.run_lock import RunLock, drive_lock, store_path
from flows.runs import statistics_path
from flows.services.stale import left_behind
from flows.services.up_file import browse
from flows.terminal.console import Terminal
from tasks.run_file import mark
from tasks.run_store import RunStore
from tasks.shuffling.backend import SendingSites
from tasks.statement import dataset_input
from tasks.statistics import is_released, release, released_constants
from tasks.tracking.run_writer import Address
from tasks.tracking.tracker import TrackedRun, Tracker
from tasks.tracking_stores import tracking_store

MOST_DATASETS = 4
"""Data sets whose public test records stay in memory; cells of one come one after another."""

MARKED = 32
"""Finished runs per flush of MLflow's database, after which they are marked as published."""

Progress = Callable[[str, int, int], None]
Release = Callable[[StatisticsRun, Backend, RunStore], Any]


class Session:
    """Session of a driver's flows; a flow of a served deployment opens its own."""

    _open: Session | None = None

    def __init__(self, home: Home, progress: Progress | None = None) -> None:
        self.home = home
        self.progress = progress
        self._tracker: Tracker | None = None
        self.cluster = DriverCluster(home)
        self._sites = SitePool()
        self._datasets: dict[str, tuple[Dataset, Eigenvalues | None]] = {}
        self._tracked: list[str] = []
        self._mlflow_runs: dict[str, TrackedRun] = {}
        self.recorded_runs = RecordedRuns(home)
        self.commanded = False
        """True if a command opened it: restarts of runs are then printed. A schedule's firing prints nothing."""
        self.failure: Exception | None = None
        """The error that ended its last run; an engine may raise another one in its place."""

    @classmethod
    @contextlib.contextmanager
    def of_driver(cls, home: Home, progress: Progress | None = None) -> Iterator[Session]:
        """The open session, or a new one for the block."""
        if cls._open is not None:
            yield cls._open
            return
        session = cls(home, progress)
        cls._open = session
        try:
            yield session
        finally:
            cls._open = None
            session.close()

    @property
    def tracker(self) -> Tracker:
        """The MLflow writer; opening it also ends runs that a killed driver left RUNNING there."""
        if self._tracker is None:
            self._tracker = Tracker(tracking_store(self.home.mlflow_uri, self.home.mlflow_artifacts))
            self._tracker.close_stale(lambda kind, name: left_behind(self.home, name, kind))
        return self._tracker

    @property
    def pages(self) -> dict[str, str]:
        """Addresses of the pages, by `browse`."""
        return browse(self.home)[0]

    def experiment(self, config: ExperimentConfig, release: Release = release) -> Experiment:
        """The config's experiment: its plan, and its data, which cells of a driver share.

        `release` runs first if silos must release statistics. Raises SiloError, BusyError, InputError as a run does.
        """
        key = config.model_dump_json(include={"seed", "data", "model"})
        if config.released is not None:
            key += statistics_id(config)
        if key not in self._datasets:
            while len(self._datasets) >= MOST_DATASETS:
                del self._datasets[next(iter(self._datasets))]
            released = None if config.released is None else self._released(config, release)
            constants, found = (None, released) if isinstance(released, Eigenvalues) else (released, None)
            made = prepare(config.data, config.model, config.seed, self.home.silos, constants)
            self._datasets[key] = made, found
        return Experiment.of(config, *self._datasets[key])

    def _released(self, config: ExperimentConfig, release: Release) -> Released | Eigenvalues:
        """Constants of released statistics: released for the first run, then read from disk."""
        path = statistics_path(self.home, statistics_id(config))
        run = StatisticsRun.prepare(config, self.home.silos)
        with drive_lock(self.home, run.run, "statistics"):
            store = RunStore(path)
            try:
                if not is_released(path):
                    backend = self.backend(run, *store.take_lease())
                    try:
                        release(run, backend, store)
                    finally:
                        backend.close()
                return released_constants(run, self.home.silos, store)
            finally:
                store.close()

    def backend(self, experiment: Experiment, lease: int, first: bool = False) -> Backend:
        """Backend of the experiment's silos under this lease. `first`: the run has had no lease before.

        Raises InputError if a cluster does not answer.
        """
        config = experiment.config.cluster
        ledgers, log = self.home.ledger_folders, self.silo_log
        # A site holds a durable ledger's lock, so a site of another config could not open the same silo beside it.
        shared = experiment.config.privacy.ledger == "memory"
        if (shuffle := experiment.plan.problem.trust.shuffle) is not None:
            from flows.driver.shuffled import shuffled

            sites = partial(self._sending, experiment, lease, first)
            return shuffled(experiment, shuffle, self.home, sites)
        if config.backend == "federation":
            from flows.driver.federated import federated

            return federated(experiment, self.home, lease, Terminal(stderr=True).print_plain)
        if config.backend == "in-process":
            return experiment.in_process(ledgers, log, self._sites if shared else None, lease=lease)
        from tasks.workers.sites import DaskSites

        client = self.client(config)
        pool = self.cluster.pool if shared else None
        return DaskSites(client, experiment, ledgers, config.deadline, log, pool, lease=lease, first=first)

    def _sending(self, experiment: Experiment, lease: int, first: bool, route: bytes) -> SendingSites:
        """Sites of a shuffled run. `route`: address and key of its shuffler, for the sites."""
        config, ledgers = experiment.config.cluster, self.home.ledger_folders
        if config.backend == "in-process":
            from tasks.shuffling.calls import carry

            return experiment.in_process(ledgers, self.silo_log, carrier=carry, route=route, lease=lease)
        from tasks.workers.sites import DaskSites

        client = self.client(config)
        log = self.silo_log
        return DaskSites(client, experiment, ledgers, config.deadline, log, route=route, lease=lease, first=first)

    @property
    def silo_log(self) -> Path | None:
        """File that FEDCORE_SILO_LOG names, with a line for every answer computed at the site."""
        path = os.environ.get("FEDCORE_SILO_LOG")
        return Path(path) if path else None

    def client(self, config: ClusterConfig) -> Any:
        """A client of the config's cluster (`DriverCluster.client`)."""
        return self.cluster.client(config)

    def track(
        self, experiment: Experiment, name: str, params: Mapping[str, Any], tags: Mapping[str, str]
    ) -> TrackedRun:
        """Begins a run in MLflow (`Tracker.begin`), in the experiment of its config's name."""
        run, within = experiment.run, experiment.config.name
        self._mlflow_runs[run] = self.tracker.begin(run, within, name, params, tags, dataset_input(experiment))
        return self._mlflow_runs[run]

    def mlflow_address(self, run: str, timeout: float) -> Address | None:
        """MLflow address of a run of this session; None if MLflow lacks it after `timeout` seconds."""
        begun = self._mlflow_runs.get(run)
        return None if begun is None else begun.address(timeout)

    def cell_flow_runs(self, sweep_flow_run: str) -> CellFlowRuns:
        """Writer of the flow runs of a sweep's cells, below the sweep's own. Raises InputError as `CellFlowRows`."""
        return CellFlowRows(self.home.prefect / "prefect.db", sweep_flow_run)

    def hold_until_published(self, lock: RunLock) -> None:
        """Holds a run's or a sweep's lock until its data have reached MLflow or are lost.

        Without the lock, another driver would end the run in MLflow as one that was left behind.
        """
        if self._tracker is not None:
            self._tracker.once_delivered(lock.hold())

    def finished(self, run: str) -> None:
        """Records that MLflow's writer has all of a finished run."""
        self._tracked.append(run)
        if len(self._tracked) >= MARKED:
            published, self._tracked = self._tracked, []
            self.tracker.once_on_disk(lambda: self._mark(published))

    def close(self) -> None:
        """Closes cluster, sites and MLflow's writer, once MLflow has all data. Safe to call again."""
        self.cluster.close()
        self._sites.close()
        tracker, self._tracker = self._tracker, None
        if tracker is None:
            return
        if not tracker.close(timeout=60.0):
            Terminal(stderr=True).print_plain(f"MLflow: {tracker.problem}; `fedcore resume` sends what is missing")
            return
        published, self._tracked = self._tracked, []
        self._mark(published)

    def _mark(self, published: Sequence[str]) -> None:
        """Marks runs on disk as published; a run without this mark is published again."""
        for run in published:
            mark(store_path(self.home, run), tracked="yes")
