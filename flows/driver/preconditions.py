"""Checks before a run or a sweep starts: clusters, shufflers and policies that its configs name."""

from __future__ import annotations

from collections.abc import Sequence

from fedcore.data.federations.federation_data import FederationData
from fedcore.experiment import experiment
from fedcore.experiment.config import ExperimentConfig
from fedcore.home import Home
from flows.services.up_file import active_services


def check_cluster(cells: Sequence[ExperimentConfig]) -> None:
    """Raises InputError if a config names a Dask scheduler that does not answer."""
    named = {cell.cluster.model_dump_json(): cell.cluster for cell in cells if cell.cluster.backend == "dask"}
    for cluster in named.values():
        if cluster.address is not None:
            from tasks.workers.cluster import own_cluster

            with own_cluster(cluster, min(10.0, cluster.deadline)):
                pass


def check_shufflers(cells: Sequence[ExperimentConfig]) -> None:
    """Raises InputError if a config names a shuffler that does not answer."""
    named = {
        (cell.shuffler.address, cell.shuffler.secret, cell.cluster.address): cell
        for cell in cells
        if cell.shuffler is not None
    }
    for cell in named.values():
        from flows.driver.shuffled import check_shuffler

        check_shuffler(cell)


def check_federations(home: Home, cells: Sequence[ExperimentConfig]) -> None:
    """Raises InputError if a config names a federation that is not here, or whose relay does not serve."""
    named = {cell.data.federation: cell for cell in cells if isinstance(cell.data, FederationData)}
    for cell in named.values():
        from flows.driver.federated import check_federation

        check_federation(cell, home)


def check_policies(home: Home, cells: Sequence[ExperimentConfig]) -> None:
    """Raises InputError if a silo lacks a needed policy, or has one and would be opened unguarded.

    Checks only silos that a process with this environment opens here: elsewhere the silos check their own policies.
    """
    kinds = {cell.model_dump_json(include={"data", "model", "seed", "privacy"}): cell for cell in cells}
    for cell in kinds.values():
        if cell.cluster.backend == "federation":
            continue
        here = cell.cluster.address is None and not active_services(home)
        if cell.cluster.backend == "in-process" or here:
            experiment.check_policies(cell)
