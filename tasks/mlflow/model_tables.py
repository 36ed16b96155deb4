"""Models of runs, and versions of registered models, as rows of MLflow's database."""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

READY = 2
LATEST, BEST = "latest-private", "best"
"""Aliases of a registered model's versions: the newest one, and the best of its last sweep. All are private."""


@dataclass(frozen=True)
class Logged:
    """A model of a run. `location`: URI of its files; `ready`: all of them are written."""

    id: str
    location: str
    ready: bool

    @property
    def folder(self) -> Path:
        return local_path(self.location)


class ModelTables:
    """Models in an open database. Every method may raise sqlite3.Error, and may be called again."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def of(self, run: str, name: str) -> Logged | None:
        """The run's model of this name; None if it has none."""
        query = "SELECT model_id, artifact_location, status FROM logged_models WHERE source_run_id = ? AND name = ?"
        found = self._db.execute(f"{query} AND lifecycle_stage = 'active'", (run, name)).fetchone()
        return None if found is None else Logged(found[0], found[1], found[2] == READY)

    def new(self, experiment: int) -> Logged:
        """A new model's id and location, not in the database yet."""
        query = "SELECT artifact_location FROM experiments WHERE experiment_id = ?"
        location = self._db.execute(query, (experiment,)).fetchone()[0].rstrip("/")
        made = f"m-{uuid.uuid4().hex}"
        return Logged(made, f"{location}/models/{made}/artifacts", ready=False)

    def add(self, experiment: int, run: str, name: str, model: Logged, tags: Mapping[str, str]) -> None:
        """Records that a model's files are written, and that it is an output of the run."""
        now = milliseconds()
        self._db.execute(
            "INSERT INTO logged_models (model_id, experiment_id, name, artifact_location, creation_timestamp_ms, "
            "last_updated_timestamp_ms, status, lifecycle_stage, source_run_id) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, 'active', ?) ON CONFLICT (model_id) DO UPDATE SET status = excluded.status",
            (model.id, experiment, name, model.location, now, now, READY, run),
        )
        labels = [(model.id, experiment, key, value) for key, value in tags.items()]
        columns = "(model_id, experiment_id, tag_key, tag_value)"
        self._db.executemany(f"INSERT OR REPLACE INTO logged_model_tags {columns} VALUES (?, ?, ?, ?)", labels)
        self._db.execute(
            "INSERT OR IGNORE INTO inputs (input_uuid, source_type, source_id, destination_type, destination_id, step) "
            "VALUES (?, 'RUN_OUTPUT', ?, 'MODEL_OUTPUT', ?, 0)",
            (uuid.uuid4().hex, run, model.id),
        )

    def tags(self, model: Logged) -> dict[str, str]:
        query = "SELECT tag_key, tag_value FROM logged_model_tags WHERE model_id = ?"
        return dict(self._db.execute(query, (model.id,)).fetchall())

    def alias(self, name: str, run: str, alias: str) -> None:
        """Gives this alias to the version made from a run's model, and takes it from another version."""
        self._db.execute(
            "INSERT OR REPLACE INTO registered_model_aliases (alias, version, name, workspace) "
            "SELECT ?, MAX(version), name, workspace FROM model_versions "
            "WHERE name = ? AND run_id = ? AND workspace = 'default' GROUP BY name, workspace",
            (alias, name, run),
        )

    def register(self, name: str, run: str, model: Logged, tags: Mapping[str, str], alias: str | None = None) -> None:
        """Makes the run's model a version of the registered model `name`, with this alias, once."""
        query = "SELECT 1 FROM model_versions WHERE name = ? AND run_id = ? AND workspace = 'default'"
        if self._db.execute(query, (name, run)).fetchone() is not None:
            return
        now = milliseconds()
        self._db.execute(
            "INSERT INTO registered_models (name, creation_time, last_updated_time) VALUES (?, ?, ?) "
            "ON CONFLICT (workspace, name) DO UPDATE SET last_updated_time = excluded.last_updated_time",
            (name, now, now),
        )
        last = "SELECT COALESCE(MAX(version), 0) + 1 FROM model_versions WHERE name = ? AND workspace = 'default'"
        version = self._db.execute(last, (name,)).fetchone()[0]
        self._db.execute(
            "INSERT INTO model_versions (name, version, creation_time, last_updated_time, current_stage, source, "
            "run_id, status, storage_location) VALUES (?, ?, ?, ?, 'None', ?, ?, 'READY', ?)",
            (name, version, now, now, model.location, run, model.location),
        )
        labels = [(key, value, name, version) for key, value in tags.items()]
        self._db.executemany("INSERT INTO model_version_tags (key, value, name, version) VALUES (?, ?, ?, ?)", labels)
        if alias is not None:
            self.alias(name, run, alias)


def local_path(uri: str) -> Path:
    """The path of a file's URI. Raises ValueError for another kind."""
    parts = urlsplit(uri)
    if parts.scheme not in ("", "file"):
        raise ValueError(f"artifacts at {uri[:100]} are not on this machine")
    return Path(unquote(parts.path) if parts.scheme else uri)


def milliseconds() -> int:
    """The time now in milliseconds since 1970, MLflow's unit."""
    return time.time_ns() // 1_000_000
