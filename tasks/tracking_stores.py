"""The tracking store of an MLflow URI. Only this module chooses the implementation that writes MLflow."""

from __future__ import annotations

from pathlib import Path

from tasks.mlflow.database import sqlite_path
from tasks.mlflow.store import MlflowStore
from tasks.tracking.run_writer import LeftBehind, TrackingStore


def tracking_store(uri: str, artifacts: Path, cache: Path | None = None) -> TrackingStore:
    """A store that writes MLflow's tables directly; it requires an SQLite file of one version of MLflow's schema.

    `cache`: folder of model templates, which may be deleted at any time; None: beside `artifacts`.
    """
    return MlflowStore(uri, artifacts, artifacts.parent / "cache" / "models" if cache is None else cache)


def close_stale(uri: str, left: LeftBehind) -> list[str]:
    """Calls `TrackingStore.close_stale`; a missing store is not created. Raises what MLflow raises.

    `left`: locks a run or sweep while its status is written; gives None for one that a living process has.
    """
    path = sqlite_path(uri)
    if path is not None and not path.exists():
        return []
    store = tracking_store(uri, Path(), Path())
    try:
        return store.close_stale(left)
    finally:
        store.close()
