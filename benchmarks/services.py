"""Rounds over silo services on loopback, beside rounds over the same silos on Dask.

Both have the same plan, records, accounts and guarded durable ledgers. A service is a process for each silo. It takes
questions from a relay: HTTP, a signature and a seal in both directions, and two commits of its sequence numbers. On
Dask, two workers hold all silos. The driver is a plain loop in both, without Prefect, MLflow and checkpoints.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import workload
from benchmarks.parties import COLUMNS, LABEL, NAME, Parties
from benchmarks.variants import Serve, serve_rounds
from fedcore.algorithms import Mbsgd
from fedcore.data.federations.federation_data import FederationData
from fedcore.experiment.config import ClusterConfig, ExperimentConfig, OrchestrationConfig, TrackingConfig
from fedcore.experiment.experiment import Experiment
from fedcore.home import Home
from fedcore.models.model_config import ModelConfig
from fedcore.planning.plan_config import PrivacyConfig

SIZES = (4, 25)


def experiment(parties: Parties, rounds: int) -> Experiment:
    """The experiment over the federation's silos, as its coordinator plans it."""
    config = ExperimentConfig(
        name="bench",
        data=FederationData(federation=NAME, features=COLUMNS, label=LABEL, classes=(0, 1)),
        model=ModelConfig(bias=False),
        privacy=PrivacyConfig(epsilon=2.0, noise="guarded", ledger="sqlite"),
        algorithm=Mbsgd(rounds=rounds, step=workload.STEP),
        cluster=ClusterConfig(backend="federation"),
        orchestration=OrchestrationConfig(tasks="phase"),
        tracking=TrackingConfig(simulation_metrics=False, mlflow=False),
    )
    return Experiment.prepare(config, parties.home.silos)


def on_services(serve: Serve, home: Path, silos: int, planned: int, url: str) -> None:
    """A process for each silo, a relay between them and the driver."""
    from flows.driver.federated import federated

    parties = Parties.made(home, silos, together=False)
    with parties.relay(), parties.services():
        found = experiment(parties, planned)
        serve_rounds(serve, found, federated(found, parties.home, int(time.time() * 1000), print))


def on_dask(serve: Serve, home: Path, silos: int, planned: int, url: str) -> None:
    """The same silos, with their own ledgers, held by Dask workers."""
    from tasks.workers.cluster import local_cluster
    from tasks.workers.sites import DaskSites

    parties = Parties.made(home, silos, together=True)
    found = experiment(parties, planned)
    found = replace(found, dataset=replace(found.dataset, sources=parties.sources()))
    own = parties.environment(parties.silos[0])
    os.environ["FEDCORE_REGISTER"] = own["FEDCORE_REGISTER"]  # of the workers, which inherit it
    os.environ["FEDCORE_HOME"] = own["FEDCORE_HOME"]
    with local_cluster(workload.WORKERS) as client:
        ledgers = Home(Path(own["FEDCORE_HOME"])).ledger_folders
        serve_rounds(serve, found, DaskSites(client, found, ledgers, deadline=120.0, lease=1, first=True))


SERVICE_VARIANTS: dict[str, Callable[..., None]] = {"durable dask sites": on_dask, "services": on_services}


def extra(table: dict[str, Any]) -> float:
    """ms that a round over services takes beyond one on Dask, by the medians of both."""
    rows = table["variants"]
    return float(rows["services"]["median_ms"] - rows["durable dask sites"]["median_ms"])
