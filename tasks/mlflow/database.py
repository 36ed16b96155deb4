"""Opens MLflow's SQLite store; a missing one is copied from an empty template that is made once per machine."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Mapping
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from filelock import FileLock

from fedcore.home import caches
from fedcore.process.import_path import safe_environment
from fedcore.process.private_files import make_private
from fedcore.process_start import begin
from tasks.mlflow.tables import MlflowTables, OtherSchema
from tasks.tracking.run_writer import FoundRun

PATIENCE = 300.0
"""Seconds for the migrations, on the slowest disk."""
SILENT = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
"""Turns off MLflow's telemetry, in Python and in the browser, whatever the user's environment sets. The pages read the
setting from their server (`ajax-api/3.0/mlflow/ui-telemetry`)."""
QUIET = {
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # the writer itself retries, from its queue
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


def open_database(uri: str, artifacts: Path) -> MlflowTables:
    """The store's tables; creates a missing file. Raises OSError, sqlite3.Error, or ValueError for another schema."""
    path = sqlite_path(uri)
    if path is None:
        raise ValueError(f"MLflow's store {uri[:100]} is no SQLite file")
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock", timeout=60):
        if not path.exists() or path.stat().st_size == 0:
            _make_database(path, artifacts)
    return MlflowTables(path)


def found_run(uri: str, tags: Mapping[str, str]) -> FoundRun | None:
    """The first run with these tags; None if there is none, or the store is missing or not readable."""
    path = sqlite_path(uri)
    if path is None or not path.exists():
        return None
    try:
        with closing(MlflowTables(path)) as tables:
            found = tables.runs(tags)
    except (OtherSchema, sqlite3.Error):
        return None
    return found[0] if found else None


def pages(uri: str, artifacts: Path) -> Any:
    """The ASGI application of MLflow's pages and API over this store, which is created or migrated if need be.

    It reads artifacts at their paths and takes no uploads. Raises what MLflow raises.
    """
    quieten()
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"  # a queue and its processes that nothing here uses
    from mlflow import server

    # The variables that `mlflow server` sets for its workers; the application reads nothing else.
    os.environ[server.BACKEND_STORE_URI_ENV_VAR] = uri
    os.environ[server.ARTIFACT_ROOT_ENV_VAR] = str(artifacts)
    from mlflow.server.handlers import initialize_backend_stores

    initialize_backend_stores(uri, uri, str(artifacts))
    from mlflow.server.fastapi_app import app

    return app


def quieten() -> None:
    """Turns off MLflow's terminal output and telemetry. To be called before MLflow is imported."""
    os.environ.update(SILENT)
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    warnings.filterwarnings("ignore", module="mlflow")  # its own use of pandas and of SQLAlchemy
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def _make_database(path: Path, artifacts: Path) -> None:
    """Copies the machine's template to `path`, atomically, with the store's own folder of artifacts."""
    for left in path.parent.glob(f"{path.name}.making*"):
        left.unlink()
    making = path.with_name(f"{path.name}.making")
    shutil.copyfile(make_template(), making)
    with closing(sqlite3.connect(making, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")  # a person reads the page while a run writes
        default = (f"{artifacts.absolute().as_uri()}/0",)
        connection.execute("UPDATE experiments SET artifact_location = ? WHERE experiment_id = 0", default)
    making.replace(path)


def make_template(path: Path | None = None) -> Path:
    """An empty store of the installed MLflow, made by its migrations once per machine (three seconds and its imports).

    Raises OSError or subprocess.SubprocessError if it cannot be made.
    """
    path = caches() / f"mlflow-{version('mlflow')}.db" if path is None else path
    make_private(path.parent)
    with FileLock(path.with_suffix(".lock"), timeout=PATIENCE):
        if not path.exists():
            with TemporaryDirectory(dir=path.parent) as folder:
                made = Path(folder) / "mlflow.db"
                # A process of its own: the imports would block the threads that train meanwhile.
                subprocess.run(
                    [sys.executable, "-P", "-m", "tasks.mlflow.database", str(made)],
                    check=True,
                    timeout=PATIENCE,
                    env=safe_environment(os.environ),
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                made.replace(path)
    return path


def _migrate(path: Path) -> None:
    """Creates an empty store at `path` by MLflow's own migrations."""
    quieten()
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    SqlAlchemyStore(f"sqlite:///{path}", path.parent.as_uri()).engine.dispose()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")  # one file, which can be copied


def sqlite_path(uri: str) -> Path | None:
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def is_final(error: Exception) -> bool:
    """True if another attempt cannot succeed: the entry is wrong, not the store unreachable."""
    return isinstance(error, LookupError | TypeError | ValueError | AttributeError | ImportError)


if __name__ == "__main__":
    begin()
    _migrate(Path(sys.argv[1]))
