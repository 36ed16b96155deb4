"""Database of a home's Prefect server: a copy of a template, which is made once per machine.

The migrations take seven seconds, a copy no noticeable time. `python -m flows.services.database` makes the templates
of Prefect and MLflow, as `make` does at installation; else the first server of a Prefect version makes its template.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock

from fedcore.home import Home, caches
from fedcore.process.import_path import safe_environment
from fedcore.process.private_files import make_private

PATIENCE = 300.0
"""Seconds for the migrations, on the slowest disk."""


def template_path() -> Path:
    """Path of the template for the installed Prefect; the file may be deleted at any time."""
    return caches() / f"prefect-{version('prefect')}.db"


def make_database(home: Home) -> None:
    """Makes the home's Prefect database, unless it exists. After a failure, Prefect runs its own migrations."""
    target = home.prefect / "prefect.db"
    if target.exists():
        return
    part = home.prefect / f".prefect-{os.getpid()}.db"
    with contextlib.suppress(OSError, sqlite3.Error, subprocess.SubprocessError, RuntimeError):
        try:
            shutil.copyfile(make_template(), part)
            with contextlib.closing(sqlite3.connect(part, isolation_level=None)) as database:
                database.execute("PRAGMA journal_mode = WAL")
            os.link(part, target)  # a rename would replace the file of a server that started meanwhile
        finally:
            part.unlink(missing_ok=True)


def make_template(path: Path | None = None) -> Path:
    """Path of the template, made if it is missing: atomically, by one process at a time.

    Raises OSError or subprocess.SubprocessError if it cannot be made.
    """
    path = template_path() if path is None else path
    make_private(path.parent)
    with FileLock(path.with_suffix(".lock"), timeout=PATIENCE):
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                made = Path(folder) / "prefect.db"
                _migrate(made, folder)
                with contextlib.closing(sqlite3.connect(made, isolation_level=None)) as database:
                    database.execute("PRAGMA journal_mode = DELETE")  # a single file can be copied
                made.replace(path)
    return path


def _migrate(database: Path, folder: str) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment = safe_environment(inherited) | {
        "PREFECT_HOME": folder,
        "PREFECT_PROFILES_PATH": str(Path(folder) / "profiles.toml"),
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{database}",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "DO_NOT_TRACK": "1",
    }
    command = [sys.executable, "-P", "-m", "prefect", "server", "database", "upgrade", "-y"]
    subprocess.run(
        command,
        env=environment,
        cwd=folder,
        check=True,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


if __name__ == "__main__":
    from fedcore.process_start import begin
    from tasks.mlflow.database import make_template as make_mlflow_template

    begin()
    print(make_template(), make_mlflow_template())
