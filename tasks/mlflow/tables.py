"""Direct reads and writes of MLflow's database: runs, points, models and registered versions, as rows.

MLflow's own client takes seconds to import and 5 to 20 ms a call, mostly in SQLAlchemy; a sweep makes a hundred calls
a cell. The tables follow one version of MLflow's schema (`SCHEMA`), and a database of another version is refused.
`tests/tasks/test_tracking.py` reads everything back with MLflow's client, and compares the rows with the client's.
Rows are on disk only when `settle` returns; until then a run can be published again from its checkpoint.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from fedcore.process.transaction import transaction
from tasks.mlflow.experiment_tables import ExperimentTables
from tasks.mlflow.keys import LONGEST_KEY, NAME
from tasks.mlflow.model_tables import ModelTables, local_path
from tasks.tracking.run_writer import FoundRun

SCHEMA = "dc11669786a5"
"""The last revision of the migrations of MLflow 3.17."""
LONGEST_PARAM, LONGEST_TAG = 6000, 8000
"""MLflow's own limits, in characters; it cuts longer values."""
LOG_PAGES = 8192
"""Pages of SQLite's write-ahead log, 32 MB, after which the log is copied into the database. The log holds about a
hundred cells of a sweep; a page that they all write is copied once."""
MOST_VALUES = 500
"""Most values in one SQL condition."""


class Point(NamedTuple):
    """A value of a metric; NaN is a value."""

    key: str
    value: float
    step: int
    timestamp: int


class OtherSchema(ValueError):
    """A database that another version of MLflow made or migrated. Final: a repeated attempt cannot succeed."""


class MlflowTables:
    """A connection to the database, for one thread. Every method may raise sqlite3.Error, and may be called again.

    `experiments`, `models`: further tables, over the same connection.
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
        """Commits the whole block or rolls it back."""
        return transaction(self._db)

    def settle(self) -> None:
        """Returns when all committed rows are on disk."""
        self._db.execute("PRAGMA wal_checkpoint(FULL)").fetchall()

    def close(self) -> None:
        self._db.close()

    def runs(self, tags: Mapping[str, str], status: str | None = None) -> list[FoundRun]:
        """Runs that have all of these tags, oldest first; only of this status, if one is given."""
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
        """Creates a run, RUNNING since `at` (milliseconds since 1970), and returns its id."""
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
        """Sets a run's status. `end`: milliseconds since 1970; None for a run that goes on."""
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
        """Sets a tag of the parent runs with these fedcore ids; ids that the database lacks are skipped."""
        for first in range(0, len(runs), MOST_VALUES):
            ids = runs[first : first + MOST_VALUES]
            self._db.execute(
                "INSERT OR REPLACE INTO tags (key, value, run_uuid) SELECT ?, ?, known.run_uuid FROM tags AS known "
                "JOIN tags AS kind ON kind.run_uuid = known.run_uuid AND kind.key = 'fedcore.kind' "
                "AND kind.value = 'experiment' WHERE known.key = 'fedcore.run_id' "
                f"AND known.value IN ({', '.join('?' * len(ids))})",
                (key[:LONGEST_KEY], value, *ids),
            )

    def last_points(self, run: str) -> dict[str, tuple[int, float]]:
        """Step and value of each key's last point."""
        rows = self._db.execute("SELECT key, step, value, is_nan FROM latest_metrics WHERE run_uuid = ?", (run,))
        return {key: (step, float("nan") if is_nan else value) for key, step, value, is_nan in rows}

    def artifacts(self, run: str) -> Path:
        """The folder of a run's files."""
        return local_path(self._db.execute("SELECT artifact_uri FROM runs WHERE run_uuid = ?", (run,)).fetchone()[0])
