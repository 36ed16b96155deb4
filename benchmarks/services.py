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

from rich.console import Console
from rich.table import Table

from benchmarks import workload
from benchmarks.interleaving import QUANTILES, compare
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
MANY, MANY_ROUNDS, PLAYERS = 1000, 6, 4
SHOWN = 7
"""Parts of a process that the table shows."""


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


def services(cycles: int, block: int, folder: Path) -> dict[str, Any]:
    """`tables`: rounds over services and on Dask, by number of silos (`compare`); `splits`: their CPU time by part.

    `many`: a round over `MANY` light silos at one relay, which `PLAYERS` processes play.
    """
    from benchmarks.services_split import services_split

    tables = [compare(silos, cycles, block, folder / "rounds", "", SERVICE_VARIANTS) for silos in SIZES]
    splits = [services_split(silos, block, folder / f"split-{silos}") for silos in SIZES]
    return {"tables": tables, "splits": splits, "many": services_split(MANY, MANY_ROUNDS, folder / "many", PLAYERS)}


def show_services(console: Console, result: dict[str, Any]) -> None:
    """Prints the rounds beside those on Dask, the CPU time by process and part, and the round over many silos."""
    for table in result["tables"]:
        shown = Table(title=f"ms per round, {table['silos']} silos, guarded durable ledgers")
        for column in ("variant", "p10", "median", "p90", "more", "quartiles", "MB"):
            shown.add_column(column, justify="left" if column == "variant" else "right")
        for name, row in table["variants"].items():
            more = ["", ""]
            if "extra_ms" in row:
                middle, low, high = row["extra_ms"]
                more = [f"{middle:.1f}", f"{low:.1f} .. {high:.1f}"]
            shown.add_row(name, *(f"{row[f'{key}_ms']:.1f}" for key in QUANTILES), *more, f"{row['memory_mb']:.0f}")
        console.print(shown)
    many = result["many"]
    runs = [*result["splits"], many]
    split = Table(title="CPU ms per round, by process and part (sampled; all silos together)")
    split.add_column("process: part")
    for run in runs:
        split.add_column(f"{run['silos']} silos", justify="right")
    by_part: list[dict[tuple[str, str], float]] = [{(row[0], row[1]): row[2] for row in run["parts"]} for run in runs]
    for process in ("driver", "relay", "silo"):
        split.add_row(f"{process}, all", *(f"{run['cpu_ms'][process]:.1f}" for run in runs))
        parts = {key[1]: ms for key, ms in by_part[-1].items() if key[0] == process}
        for part in sorted(parts, key=lambda each: -parts[each])[:SHOWN]:
            split.add_row(f"  {part}", *(f"{found.get((process, part), 0.0):.2f}" for found in by_part))
        split.add_section()
    split.add_row("wall clock, median", *(f"{run['wall_median_ms']:.1f}" for run in runs))
    console.print(split)
    console.print(
        f"{many['silos']} light silos, played by {PLAYERS} processes, at one relay: {many['wall_median_ms'] / 1e3:.2f} "
        f"s a round; memory of the relay {many['relay_mb']:.0f} MB, of the driver {many['driver_mb']:.0f} MB"
    )
