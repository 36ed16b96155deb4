"""Writer of rows in Prefect's database: flow runs of a sweep's cells, task runs of their rounds.

Prefect's own sub-flow costs the driver 90 ms and the server 170 ms, and a task run 12 ms in all. Cells of a sweep train
in less. Prefect's pages show the same as for sub-flows. Below the sweep's flow run, each cell has a flow run with
parameters, tags, states and an artifact. Each phase is a task run; so is each round, if the config wants it. Rows are
written about once a second, in one transaction, and only to a database of schema `SCHEMA`.
"""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedcore.errors import InputError
from fedcore.process.transaction import transaction
from flows.cells.flow_runs import State, state_of

SCHEMA = "a3b9c7d2e5f1"
"""Last migration of Prefect 3.8."""
EVERY = 1.0
"""Seconds between two transactions."""
PATIENCE = 30.0
"""Seconds for which the server may hold the database."""
FLOW = "run"

Row = dict[str, Any]


class CellFlowRows:
    """Rows of a sweep's cells that are not in the database yet. `parent`: id of the sweep's own flow run.

    The constructor and all methods raise InputError for a database that cannot be written or has another schema.
    """

    def __init__(self, database: Path, parent: str) -> None:
        self._path, self._parent = database, parent
        self._rows: dict[tuple[str, str], Row] = {}
        self._written = 0.0
        self._cells = 0
        with self._explained():
            self._db = sqlite3.connect(database, isolation_level=None, timeout=PATIENCE)
            found = self._db.execute("SELECT version_num FROM alembic_version").fetchall()
            if found == [(SCHEMA,)]:
                new = "INSERT INTO flow (id, name) VALUES (?, ?) ON CONFLICT (name) DO NOTHING"
                self._db.execute(new, (_id(), FLOW))
                (self.flow,) = self._db.execute("SELECT id FROM flow WHERE name = ?", (FLOW,)).fetchone()
                return
            self._db.close()
        raise InputError(f"{database} has Prefect's schema {found}, this version of fedcore writes {SCHEMA}")

    def begin(self, name: str, parameters: dict[str, Any], tags: list[str]) -> CellFlowRow:
        """Creates a cell's flow run in state RUNNING."""
        self._cells += 1
        return CellFlowRow(self, self._parent, self._cells - 1, name, parameters, tags)

    def put(self, table: str, row: Row) -> None:
        """Queues a row; it replaces a queued row of the same id."""
        self._rows[table, row["id"]] = row

    def write(self, due: float = EVERY) -> None:
        """Writes the queued rows, unless the last transaction was less than `due` seconds ago."""
        now = time.monotonic()
        if not self._rows or now - self._written < due:
            return
        with self._explained(), transaction(self._db):
            for (table, _), row in self._rows.items():
                columns, places = ", ".join(row), ", ".join("?" * len(row))
                known = ", ".join(f"{column} = excluded.{column}" for column in row if column != "id")
                self._db.execute(
                    f"INSERT INTO {table} ({columns}) VALUES ({places}) ON CONFLICT DO UPDATE SET {known}",
                    [json.dumps(value) if isinstance(value, dict | list) else value for value in row.values()],
                )
        self._rows.clear()
        self._written = now

    def close(self) -> None:
        """Writes the queued rows and closes the database."""
        try:
            self.write(due=0.0)
        finally:
            self._db.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise InputError(f"Prefect's database {self._path} cannot be written ({error})") from None


class CellFlowRow:
    """A cell's flow run, and the task run in the sweep's flow run that represents it."""

    def __init__(
        self, flows: CellFlowRows, sweep: str, number: int, name: str, parameters: dict[str, Any], tags: list[str]
    ) -> None:
        self.id = _id()
        self._flows = flows
        self._began = datetime.now(UTC)
        started = _started(self._began)
        self._stand_in: Row = {
            "id": _id(),
            "name": f"{FLOW}-{number}",
            "task_key": "run_flow",
            "dynamic_key": str(number),
            "flow_run_id": sweep,
            "task_inputs": {},
            "labels": {},
            **started,
        }
        self._run: Row = {
            "id": self.id,
            "name": name,
            "flow_id": flows.flow,
            "parameters": parameters,
            "tags": tags,
            "labels": {},
            "parent_task_run_id": self._stand_in["id"],
            **started,
        }
        self._state("RUNNING")

    @contextmanager
    def task(self, name: str, key: str, within: str | None = None) -> Iterator[str]:
        """Id of a task run that lasts as long as the block. `within`: id of its parent task run."""
        began = datetime.now(UTC)
        parents = {"__parents__": [{"input_type": "task_run", "id": within}]} if within is not None else {}
        row: Row = {
            "id": _id(),
            "name": name,
            "task_key": f"{key}_task",
            "dynamic_key": _id(),
            "flow_run_id": self.id,
            "task_inputs": parents,
            "labels": {},
            "flow_run_run_count": 1,
            **_started(began),
        }
        self._put("task_run", row, "RUNNING", began)
        try:
            yield row["id"]
        except BaseException as error:
            self._put("task_run", row, state_of(error), began, str(error))
            raise
        self._put("task_run", row, "COMPLETED", began)

    def end(self, state: State, message: str | None = None) -> None:
        """Sets the flow run's final state."""
        self._state(state, message)

    def artifact(self, key: str, text: str) -> None:
        """Adds a Markdown text to the flow run's page, and to the page of artifacts under `key`."""
        made: Row = {"id": _id(), "key": key, "type": "markdown", "data": json.dumps(text), "flow_run_id": self.id}
        self._flows.put("artifact", made)
        self._flows.put("artifact_collection", {**made, "id": _id(), "latest_id": made["id"]})

    def _state(self, state: State, message: str | None = None) -> None:
        self._put("task_run", self._stand_in, state, self._began, message)
        self._put("flow_run", self._run, state, self._began, message)

    def _put(self, table: str, run: Row, state: State, began: datetime, message: str | None = None) -> None:
        """Queues the run with its new state, and that state for its history."""
        now, of = datetime.now(UTC), f"{table}_id"
        kind = "COMPLETED" if state == "ABANDONED" else state
        details: Row = {of: run["id"]}
        if run is self._stand_in:
            details |= {"flow_run_id": run["flow_run_id"], "child_flow_run_id": self.id}
        elif table == "task_run":
            details["flow_run_id"] = self.id
        entered: Row = {
            "id": _id(),
            of: run["id"],
            "type": kind,
            "name": state.capitalize(),
            "timestamp": _text(now),
            "message": message,
            "state_details": details,
        }
        self._flows.put(f"{table}_state", entered)
        run |= {
            "state_id": entered["id"],
            "state_type": kind,
            "state_name": entered["name"],
            "state_timestamp": _text(now),
        }
        if state != "RUNNING":
            run |= {"end_time": _text(now), "total_run_time": _text(_EPOCH + (now - began))}
        self._flows.put(table, run)


_EPOCH = datetime.fromtimestamp(0, UTC)
"""Prefect stores a duration as this time plus the duration."""


def _started(at: datetime) -> Row:
    """Columns that a run has from its start. Prefect cannot read the schema's own default for the duration."""
    return {"run_count": 1, "expected_start_time": _text(at), "start_time": _text(at), "total_run_time": _text(_EPOCH)}


def _id() -> str:
    return str(uuid.uuid4())


def _text(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
