"""The tracking store of an MLflow URI: the one place that chooses how MLflow is written."""

from __future__ import annotations

from pathlib import Path

from tasks.mlflow.database import sqlite_path
from tasks.mlflow.store import MlflowStore
from tasks.tracking.run_writer import LeftBehind, TrackingStore


def tracking_store(uri: str, artifacts: Path, cache: Path | None = None) -> TrackingStore:
    """A store that writes MLflow's tables directly, which takes an SQLite file of one version of its schema.

    `cache`: folder of templates of models, which may be deleted at any time; None: beside `artifacts`.
    """
    return MlflowStore(uri, artifacts, artifacts.parent / "cache" / "models" if cache is None else cache)


def close_stale(uri: str, left: LeftBehind) -> list[str]:
    """As `TrackingStore.close_stale`; a store that is not there stays so. Raises what MLflow raises.

    `left`: holds a run or sweep by its id while its status is written; None of one that a living process has.
    """
    path = sqlite_path(uri)
    if path is not None and not path.exists():
        return []
    store = tracking_store(uri, Path(), Path())
    try:
        return store.close_stale(left)
    finally:
        store.close()
