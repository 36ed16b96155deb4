"""Opening MLflow's store, which may be a SQLite file that has to be made first. Imports mlflow only when called."""

from __future__ import annotations

import logging
import os
import sqlite3
import warnings
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

if TYPE_CHECKING:
    from mlflow import MlflowClient

QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # the writer tries again by itself, and keeps its queue
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
# Errors that another attempt cannot mend; all others may be a store that is away.
FINAL = {
    "INVALID_PARAMETER_VALUE",
    "BAD_REQUEST",
    "INVALID_STATE",
    "PERMISSION_DENIED",
    "RESOURCE_DOES_NOT_EXIST",
}


def open_client(uri: str, artifacts: Path) -> MlflowClient:
    """A client of the store; a missing SQLite file is made. Raises OSError, sqlite3 or MLflow errors."""
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    warnings.filterwarnings("ignore", module="mlflow")  # its own use of pandas and of SQLAlchemy
    import mlflow

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    path = sqlite_path(uri)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=60):
            if not path.exists() or path.stat().st_size == 0:
                _make_database(path, artifacts)
        # MLflow would try a database that cannot be written for minutes, in silence.
        with closing(sqlite3.connect(path, timeout=5.0)) as connection:
            connection.execute("BEGIN IMMEDIATE")
    return mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)


def _make_database(path: Path, artifacts: Path) -> None:
    """Makes MLflow's tables under another name, then renames: a kill leaves no half-made database."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for left in path.parent.glob(f"{path.name}.making*"):
        left.unlink()
    making = path.with_name(f"{path.name}.making")
    with closing(sqlite3.connect(making)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")  # a person reads the page while a run writes
    SqlAlchemyStore(f"sqlite:///{making}", artifacts.absolute().as_uri()).engine.dispose()
    making.replace(path)


def sqlite_path(uri: str) -> Path | None:
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def is_final(error: Exception) -> bool:
    """True if another attempt cannot succeed: a mistake in an entry, not a store that is away."""
    mistakes = (LookupError, TypeError, ValueError, AttributeError, ImportError)
    return isinstance(error, mistakes) or getattr(error, "error_code", None) in FINAL
