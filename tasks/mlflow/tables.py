"""MLflow's database as its writer uses it: runs, points, models and registered versions, as rows.

MLflow's own client takes 5 to 20 ms a call, most of it in SQLAlchemy, and seconds to import; a sweep makes a hundred
calls a cell. The tables are those of one version of MLflow's schema (`SCHEMA`), and a database of another is refused;
`tests/tasks/test_tracking.py` reads all of it back with MLflow's client, and compares its rows with the client's.
The file is on disk when `settle` returns, not before: until then a run is published again from its checkpoint.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from tasks.mlflow.experiment_tables import ExperimentTables
from tasks.mlflow.keys import LONGEST_KEY, NAME
from tasks.mlflow.model_tables import ModelTables, local_path
from tasks.run_file import transaction
from tasks.tracking.run_writer import FoundRun

SCHEMA = "dc11669786a5"
"""Of MLflow 3.17: the revision that its migrations end with."""
LONGEST_PARAM, LONGEST_TAG = 6000, 8000
"""MLflow's own limits; it cuts longer values."""
LOG_PAGES = 8192
"""Pages of SQLite's write-ahead log, 32 MB, after which it is copied into the database. That is some hundred cells of a
sweep: a page that they all write is copied once."""
MOST_ASKED = 500
"""Values in a condition."""


class Point(NamedTuple):
    """A value of a metric; NaN is a value."""

    key: str
    value: float
    step: int
    timestamp: int


class OtherSchema(ValueError):
    """A database that another version of MLflow made or migrated: trying again does not help."""


class MlflowTables:
    """A connection to the database, for one thread. Every method may raise sqlite3.Error, and may be called again.

    `experiments`, `models`: other tables, by the same connection.
    """

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

        self.experiments, self.models = ExperimentTables(self._db), ModelTables(self._db)

    def transaction(self) -> AbstractContextManager[None]:
        """All that is done in the block, or nothing of it."""
        return transaction(self._db)

    def settle(self) -> None:
        """Returns when all that was committed is on disk."""
        self._db.execute("PRAGMA wal_checkpoint(FULL)").fetchall()

    def close(self) -> None:
        self._db.close()

    def runs(self, tags: Mapping[str, str], status: str | None = None) -> list[FoundRun]:
        """The runs that have all of these tags, oldest first; of this status, where one is given."""
        conditions, values = ["runs.lifecycle_stage = 'active'"], list[object]()
        for key, value in tags.items():
            conditions.append("runs.run_uuid IN (SELECT run_uuid FROM tags WHERE key = ? AND value = ?)")
            values += [key, value]
        if status is not None:
            conditions.append("runs.status = ?")
            values.append(status)
        select = "SELECT run_uuid, experiment_id, status FROM runs"
        query = f"{select} WHERE {' AND '.join(conditions)} ORDER BY start_time, rowid"
        found = []
        for run, experiment, state in self._db.execute(query, values).fetchall():
            known = dict(self._db.execute("SELECT key, value FROM tags WHERE run_uuid = ?", (run,)))
            params = {key for (key,) in self._db.execute("SELECT key FROM params WHERE run_uuid = ?", (run,))}
            found.append(FoundRun(run, experiment, state, known, params))
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
        self,
        run: str,
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        points: Iterable[Point] = (),
    ) -> None:
        """Adds parameters and points, sets tags. Points of a key come in the order of their steps.

        Raises ValueError for a key that MLflow would refuse.
        """
        listed = list(points)
        for key in (*(params or ()), *(tags or ()), *{point.key for point in listed}):
            if len(key) > LONGEST_KEY or not NAME.fullmatch(key):
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

    def untag(self, run: str, key: str) -> None:
        """Removes a tag, if it is there."""
        self._db.execute("DELETE FROM tags WHERE run_uuid = ? AND key = ?", (run, key))

    def tag_known(self, runs: Sequence[str], key: str, value: str) -> None:
        """Sets a tag of those parent runs that are here, by fedcore's ids."""
        for first in range(0, len(runs), MOST_ASKED):
            asked = runs[first : first + MOST_ASKED]
            self._db.execute(
                "INSERT OR REPLACE INTO tags (key, value, run_uuid) SELECT ?, ?, known.run_uuid FROM tags AS known "
                "JOIN tags AS kind ON kind.run_uuid = known.run_uuid AND kind.key = 'fedcore.kind' "
                "AND kind.value = 'experiment' WHERE known.key = 'fedcore.run_id' "
                f"AND known.value IN ({', '.join('?' * len(asked))})",
                (key[:LONGEST_KEY], value, *asked),
            )

    def last_points(self, run: str) -> dict[str, tuple[int, float]]:
        """By key, step and value of the last point."""
        rows = self._db.execute("SELECT key, step, value, is_nan FROM latest_metrics WHERE run_uuid = ?", (run,))
        return {key: (step, float("nan") if is_nan else value) for key, step, value, is_nan in rows}

    def artifacts(self, run: str) -> Path:
        """Where the files of a run are."""
        return local_path(self._db.execute("SELECT artifact_uri FROM runs WHERE run_uuid = ?", (run,)).fetchone()[0])
