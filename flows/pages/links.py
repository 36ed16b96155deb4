"""Links to runs and sweeps on the pages of Prefect and MLflow."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from fedcore.experiment.config import ExperimentConfig
from fedcore.home import Home
from flows.run_lock import is_driven
from tasks.tracking.run_writer import MISSING, Address, FoundRun
from tasks.tracking_stores import tracking_store

LIST = "?workflowType=machine_learning"
"""Without it MLflow's page opens on views for language models."""


def flow_page(pages: dict[str, str], flow_run_id: str) -> dict[str, str]:
    """Id and page of a flow run. The page opens once `fedcore up` serves it."""
    return {"flow_run_id": flow_run_id, "flow_run_url": f"{pages['prefect']}/runs/flow-run/{flow_run_id}"}


def run_page(pages: dict[str, str], run: Address) -> str:
    """Page of a run in MLflow."""
    return f"{pages['mlflow']}/#/experiments/{run.experiment}/runs/{run.id}{LIST}"


def sweep_page(home: Home, pages: dict[str, str], sweep: str) -> str | None:
    """MLflow's list of a sweep's cells, with a column per varied key; None without the sweep."""
    found = _found(home, sweep, "sweep")
    if found is None:
        return None
    return f"{pages['mlflow']}/#/experiments/{found.experiment}/runs{LIST}&viewStateShareKey={quote(sweep)}"


def mlflow_page(home: Home, pages: dict[str, str], run: str) -> str | None:
    """Page of a run in MLflow, by fedcore's id; None if MLflow has no such run."""
    found = _found(home, run, "experiment")
    return None if found is None else run_page(pages, Address(found.experiment, found.id))


def is_missing(home: Home, sweep: str, cells: Sequence[ExperimentConfig]) -> bool:
    """True if MLflow has a finished sweep but not its end.

    False while a driver has the sweep, and if none of its cells is tracked: MLflow then receives nothing of it.
    """
    if not any(cell.tracking.mlflow for cell in cells):
        return False
    found = _found(home, sweep, "sweep")
    lacks = found is not None and (MISSING in found.tags or found.status != "FINISHED")
    return lacks and not is_driven(home, sweep)


def _found(home: Home, id: str, kind: str) -> FoundRun | None:
    store = tracking_store(home.mlflow_uri, home.mlflow_artifacts)
    return store.find({"fedcore.run_id": id, "fedcore.kind": kind})


def artifact_key(kind: str, name: str) -> str:
    """An artifact's key, in the characters that Prefect accepts."""
    return f"{kind}-{name.lower().replace('_', '-').replace('.', '-')}"
