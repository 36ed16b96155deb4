"""MLflow's database as its writer uses it: runs, points, models and registered versions, as rows.

MLflow's own client takes 5 to 20 ms a call, most of it in SQLAlchemy, and seconds to import; a sweep makes a hundred
calls a cell. The tables are those of one version of MLflow's schema (`SCHEMA`), and a database of another is refused;
`tests/tasks/test_tracking.py` reads all of it back with MLflow's client, and compares its rows with the client's.
The file is on disk when `settle` returns, not before: until then a run's checkpoint can tell it again.
"""

from __future__ import annotations

import re
import sqlite3
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from tasks.run_file import transaction

SCHEMA = "dc11669786a5"
"""Of MLflow 3.17: the revision that its migrations end with."""
LONGEST_KEY, LONGEST_PARAM, LONGEST_TAG = 250, 6000, 8000
"""MLflow's own limits; it cuts longer values."""
READY = 2
LOG_PAGES = 8192
"""Pages of SQLite's write-ahead log, 32 MB, after which it is copied into the database. That is some hundred cells of a
sweep: a page that they all write is copied once."""
_NAME = re.compile(r"[\w.:/ -]+")
_OTHER = re.compile(r"[^\w.:/ -]")


class Point(NamedTuple):
    """A value of a metric; NaN is a value."""

    key: str
    value: float
    step: int
    timestamp: int


class Found(NamedTuple):
    """A run as it is in the database."""

    id: str
    status: str
    tags: dict[str, str]
    params: set[str]


@dataclass(frozen=True)
class Logged:
    """A model of a run: its id, where its files are, and whether they are all there."""

    id: str
    location: str
    ready: bool

    @property
    def folder(self) -> Path:
        return local_path(self.location)


class OtherSchema(ValueError):
    """A database that another version of MLflow made or migrated: trying again does not help."""


class MlflowTables:
    """A connection to the database, for one thread. Every method may raise sqlite3.Error, and may be called again."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, timeout=5.0)
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
        found = self._db.execute("SELECT version_num FROM alembic_version").fetchone()
        if found != (SCHEMA,):
            self._db.close()
            raise OtherSchema(
                f"{path} has MLflow's schema {found and found[0]}, this version of fedcore writes {SCHEMA}; "
                "use the MLflow that made it, or another FEDCORE_HOME"
            )

    def transaction(self) -> AbstractContextManager[None]:
        """All that is done in the block, or nothing of it."""
        return transaction(self._db)

    def settle(self) -> None:
        """Returns when all that was committed is on disk."""
        self._db.execute("PRAGMA wal_checkpoint(FULL)").fetchall()

    def close(self) -> None:
        self._db.close()

    def experiment(self, name: str, artifacts: Path) -> int:
        """The experiment's id; made if it is missing, restored if a person deleted it."""
        found = self._db.execute("SELECT experiment_id FROM experiments WHERE name = ?", (name,)).fetchone()
        if found is not None:
            self._db.execute("UPDATE experiments SET lifecycle_stage = 'active' WHERE experiment_id = ?", found)
            return int(found[0])
        now = milliseconds()
        values = (name, artifacts.absolute().as_uri(), now, now)
        made = self._db.execute(
            "INSERT INTO experiments (name, artifact_location, lifecycle_stage, creation_time, last_update_time) "
            "VALUES (?, ?, 'active', ?, ?)", values,
        )  # fmt: skip
        # Without this tag the page opens on views for language models instead of the runs.
        tag = ("mlflow.experimentKind", "custom_model_development", made.lastrowid)
        self._db.execute("INSERT INTO experiment_tags (key, value, experiment_id) VALUES (?, ?, ?)", tag)
        return int(made.lastrowid or 0)

    def runs(self, tags: Mapping[str, str], status: str | None = None, experiment: int | None = None) -> list[Found]:
        """The runs that have all of these tags, oldest first; of this status and experiment, where one is given."""
        conditions, values = ["runs.lifecycle_stage = 'active'"], list[object]()
        for key, value in tags.items():
            conditions.append("runs.run_uuid IN (SELECT run_uuid FROM tags WHERE key = ? AND value = ?)")
            values += [key, value]
        for column, wanted in (("status", status), ("experiment_id", experiment)):
            if wanted is not None:
                conditions.append(f"runs.{column} = ?")
                values.append(wanted)
        query = f"SELECT run_uuid, status FROM runs WHERE {' AND '.join(conditions)} ORDER BY start_time, rowid"
        found = []
        for run, state in self._db.execute(query, values).fetchall():
            known = dict(self._db.execute("SELECT key, value FROM tags WHERE run_uuid = ?", (run,)))
            params = {key for (key,) in self._db.execute("SELECT key FROM params WHERE run_uuid = ?", (run,))}
            found.append(Found(run, state, known, params))
        return found

    def create_run(self, experiment: int, name: str, tags: Mapping[str, str], at: int) -> str:
        """A new run, RUNNING since `at` (milliseconds since 1970); its id."""
        run = uuid.uuid4().hex
        where = "SELECT artifact_location FROM experiments WHERE experiment_id = ?"
        location = f"{self._db.execute(where, (experiment,)).fetchone()[0].rstrip('/')}/{run}/artifacts"
        self._db.execute(
            "INSERT INTO runs (run_uuid, name, source_type, source_name, entry_point_name, user_id, status, "
            "start_time, source_version, lifecycle_stage, artifact_uri, experiment_id) "
            "VALUES (?, ?, 'UNKNOWN', '', '', 'unknown', 'RUNNING', ?, '', 'active', ?, ?)",
            (run, name, at, location, experiment),
        )
        self.add(run, tags={**tags, "mlflow.runName": name})
        return run

    def set_status(self, run: str, status: str, end: int | None = None) -> None:
        """`end` (milliseconds since 1970): None for a run that goes on."""
        self._db.execute("UPDATE runs SET status = ?, end_time = ? WHERE run_uuid = ?", (status, end, run))

    def add(
        self, run: str, params: Mapping[str, str] | None = None, tags: Mapping[str, str] | None = None,
        points: Iterable[Point] = (),
    ) -> None:  # fmt: skip
        """Adds parameters and points, sets tags. Points of a key come in the order of their steps.

        Raises ValueError for a key that MLflow would refuse.
        """
        listed = list(points)
        for key in (*(params or ()), *(tags or ()), *{point.key for point in listed}):
            if len(key) > LONGEST_KEY or not _NAME.fullmatch(key):
                raise ValueError(f"{key[:60]!r} is no name of a parameter, tag or metric in MLflow")
        add, db = "INSERT OR IGNORE INTO", self._db
        given = [(key, value[:LONGEST_PARAM], run) for key, value in (params or {}).items()]
        db.executemany(f"{add} params (key, value, run_uuid) VALUES (?, ?, ?)", given)
        labels = [(key, value[:LONGEST_TAG], run) for key, value in (tags or {}).items()]
        db.executemany("INSERT OR REPLACE INTO tags (key, value, run_uuid) VALUES (?, ?, ?)", labels)
        columns = "metrics (key, value, is_nan, timestamp, step, run_uuid) VALUES (?, ?, ?, ?, ?, ?)"
        rows = {}
        for key, value, step, timestamp in listed:
            is_nan = value != value
            rows[key, step] = (key, 0.0 if is_nan else value, is_nan, timestamp, step, run)
        db.executemany(f"{add} {columns}", rows.values())
        newest = {key: row for (key, _), row in rows.items()}
        db.executemany(f"INSERT OR REPLACE INTO latest_{columns}", newest.values())

    def last_points(self, run: str) -> dict[str, tuple[int, float]]:
        """By key, step and value of the last point."""
        rows = self._db.execute("SELECT key, step, value, is_nan FROM latest_metrics WHERE run_uuid = ?", (run,))
        return {key: (step, float("nan") if is_nan else value) for key, step, value, is_nan in rows}

    def artifacts(self, run: str) -> Path:
        """Where the files of a run are."""
        return local_path(self._db.execute("SELECT artifact_uri FROM runs WHERE run_uuid = ?", (run,)).fetchone()[0])

    def model(self, run: str, name: str) -> Logged | None:
        """The model of this name that a run has."""
        query = "SELECT model_id, artifact_location, status FROM logged_models WHERE source_run_id = ? AND name = ?"
        found = self._db.execute(f"{query} AND lifecycle_stage = 'active'", (run, name)).fetchone()
        return None if found is None else Logged(found[0], found[1], found[2] == READY)

    def new_model(self, experiment: int) -> Logged:
        """Id and place of a model that is not in the database yet."""
        query = "SELECT artifact_location FROM experiments WHERE experiment_id = ?"
        location = self._db.execute(query, (experiment,)).fetchone()[0].rstrip("/")
        made = f"m-{uuid.uuid4().hex}"
        return Logged(made, f"{location}/models/{made}/artifacts", ready=False)

    def add_model(self, experiment: int, run: str, name: str, model: Logged, tags: Mapping[str, str]) -> None:
        """Notes that the files of a model are there, and that it is what the run made."""
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

    def model_tags(self, model: Logged) -> dict[str, str]:
        query = "SELECT tag_key, tag_value FROM logged_model_tags WHERE model_id = ?"
        return dict(self._db.execute(query, (model.id,)).fetchall())

    def alias(self, name: str, run: str, alias: str) -> None:
        """Gives the version that a run's model is of the registered model this alias, which another may have had."""
        self._db.execute(
            "INSERT OR REPLACE INTO registered_model_aliases (alias, version, name, workspace) "
            "SELECT ?, MAX(version), name, workspace FROM model_versions "
            "WHERE name = ? AND run_id = ? AND workspace = 'default' GROUP BY name, workspace",
            (alias, name, run),
        )

    def register(self, name: str, run: str, model: Logged, tags: Mapping[str, str], alias: str | None = None) -> None:
        """Makes the run's model a version of the registered model `name`, with this alias, unless it is one."""
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


def key_of(text: str) -> str:
    """The text as a key that MLflow takes: what may stand in none is an underscore."""
    return _OTHER.sub("_", text)[:LONGEST_KEY]


def milliseconds() -> int:
    """Now, as MLflow counts it."""
    return time.time_ns() // 1_000_000


def local_path(uri: str) -> Path:
    """The path of a file's URI. Raises ValueError for another kind."""
    parts = urlsplit(uri)
    if parts.scheme not in ("", "file"):
        raise ValueError(f"artifacts at {uri[:100]} are not on this machine")
    return Path(unquote(parts.path) if parts.scheme else uri)
