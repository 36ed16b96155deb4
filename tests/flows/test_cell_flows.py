"""Rows of a sweep's cells in Prefect's database, read back by Prefect's own server code."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from fedcore.errors import InputError, SiloError
from fedcore.home import Home
from flows.cells.flow_runs import state_of
from flows.cells.prefect_rows import SCHEMA, CellFlowRows
from flows.services.database import make_template
from flows.services.environment import prefect_environment
from tests.patience import HANGS

READ = """
import asyncio, json
from prefect.server import models, schemas
from prefect.server.database import provide_database_interface

async def main():
    db = provide_database_interface()
    async with db.session_context() as session:
        runs = await models.flow_runs.read_flow_runs(session, sort=schemas.sorting.FlowRunSort.START_TIME_ASC)
        tasks = await models.task_runs.read_task_runs(session, sort=schemas.sorting.TaskRunSort.EXPECTED_START_TIME_ASC)
        artifacts = await models.artifacts.read_artifacts(session)
        latest = await models.artifacts.read_latest_artifacts(session)
        states = {}
        for run in runs:
            found = await models.flow_run_states.read_flow_run_states(session, run.id)
            states[str(run.id)] = [state.name for state in found]
        def plain(kind, rows):
            return [kind.model_validate(row, from_attributes=True).model_dump(mode="json") for row in rows]

        values = {
            "runs": plain(schemas.core.FlowRun, runs), "tasks": plain(schemas.core.TaskRun, tasks),
            "artifacts": [artifact.data for artifact in artifacts], "latest": [artifact.key for artifact in latest],
            "states": states,
        }
    print(json.dumps(values))

asyncio.run(main())
"""


@pytest.fixture
def database(tmp_path) -> Path:
    """Empty database of a home, as a server's first start makes it."""
    home = Home(tmp_path).make()
    home.prefect.mkdir()
    target = home.prefect / "prefect.db"
    target.write_bytes(make_template().read_bytes())
    return target


def read(database: Path) -> dict:
    """The database as Prefect's models read it, in a process of its own."""
    import json

    home = Home(database.parent.parent)
    environment = os.environ | prefect_environment(home)
    environment["PREFECT_API_DATABASE_CONNECTION_URL"] = f"sqlite+aiosqlite:///{database}"
    done = subprocess.run([sys.executable, "-c", READ], env=environment, capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def count(database: Path, table: str) -> int:
    with closing(sqlite3.connect(database)) as db:
        return db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0]


PARENT = "11111111-2222-4333-8444-555555555555"


@pytest.mark.minutes
@pytest.mark.slow
def test_prefect_reads_cells_that_run_that_ended_and_that_failed(database):
    flows = CellFlowRows(database, PARENT)
    data = {"source": "digits"}
    cells = [flows.begin(f"cell {n}", {"seed": n, "data": data}, [f"seed:{n}", "sweep:s"]) for n in range(4)]
    with cells[0].task("phase 1", "phase") as phase, cells[0].task("round 1.1", "round", phase):
        flows.write(due=0.0)  # in the middle: the state that a page shows of a slow cell
        running = read(database)
    cells[0].artifact("result-digits-1", "test error 0.1")
    cells[0].end("COMPLETED")
    with pytest.raises(SiloError), cells[1].task("phase 1", "phase"):
        raise SiloError("ash", "lost", "it was lost")
    cells[1].end("FAILED", "silo ash: it was lost")
    with pytest.raises(KeyboardInterrupt), cells[2].task("phase 1", "phase"):
        raise KeyboardInterrupt
    cells[2].end("CRASHED", "Ctrl-C")
    flows.close()

    assert [run["state_name"] for run in running["runs"]] == ["Running"] * 4
    assert sorted(task["name"] for task in running["tasks"]) == [
        "phase 1",
        "round 1.1",
        "run-0",
        "run-1",
        "run-2",
        "run-3",
    ]
    found = read(database)
    by_name = {run["name"]: run for run in found["runs"]}
    assert {name: run["state_name"] for name, run in by_name.items()} == {
        "cell 0": "Completed",
        "cell 1": "Failed",
        "cell 2": "Crashed",
        "cell 3": "Running",
    }
    assert by_name["cell 0"]["parameters"] == {"seed": 0, "data": {"source": "digits"}}
    assert by_name["cell 0"]["tags"] == ["seed:0", "sweep:s"]
    assert found["states"][by_name["cell 0"]["id"]] == ["Running", "Completed"]
    assert by_name["cell 0"]["end_time"] is not None and by_name["cell 3"]["end_time"] is None
    tasks = {(task["flow_run_id"], task["name"]): task for task in found["tasks"]}
    stand_in = tasks[PARENT, "run-0"]
    assert by_name["cell 0"]["parent_task_run_id"] == stand_in["id"]
    assert stand_in["state"]["state_details"]["child_flow_run_id"] == by_name["cell 0"]["id"]
    phase, inner = (tasks[by_name["cell 0"]["id"], name] for name in ("phase 1", "round 1.1"))
    assert inner["task_inputs"]["__parents__"] == [{"input_type": "task_run", "id": phase["id"]}]
    assert (phase["state_name"], inner["state_name"]) == ("Completed", "Completed")
    assert tasks[by_name["cell 1"]["id"], "phase 1"]["state"]["message"] == "silo ash: it was lost"
    assert tasks[by_name["cell 2"]["id"], "phase 1"]["state_name"] == "Crashed"
    assert found["artifacts"] == ["test error 0.1"] and found["latest"] == ["result-digits-1"]


def test_rows_are_written_once_a_second_or_at_the_end(database):
    flows = CellFlowRows(database, PARENT)
    first = flows.begin("first", {}, [])
    flows.write()
    assert count(database, "flow_run") == 1, "the first cell is shown at once"
    second = flows.begin("second", {}, [])
    flows.write(due=HANGS)  # even on a slow disk
    assert count(database, "flow_run") == 1
    first.end("COMPLETED")
    second.end("COMPLETED")
    flows.close()
    assert (count(database, "flow_run"), count(database, "flow_run_state")) == (2, 4)


def test_a_later_sweep_uses_the_flow_that_is_there_and_a_result_again_replaces_the_latest(database):
    for _ in range(2):
        flows = CellFlowRows(database, PARENT)
        cell = flows.begin("cell", {}, [])
        cell.artifact("result-1", "text")
        cell.end("COMPLETED")
        flows.close()
    assert [count(database, table) for table in ("flow", "flow_run", "artifact", "artifact_collection")] == [1, 2, 2, 1]


def test_a_database_of_another_schema_is_refused(database):
    with sqlite3.connect(database) as db:
        assert db.execute("SELECT version_num FROM alembic_version").fetchall() == [(SCHEMA,)]
        db.execute("UPDATE alembic_version SET version_num = '0123456789ab'")
    with pytest.raises(InputError, match=r"Prefect's schema .*0123456789ab"):
        CellFlowRows(database, PARENT)
    assert count(database, "flow") == 0


def test_a_database_that_cannot_be_written_is_named(database, monkeypatch):
    monkeypatch.setattr("flows.cells.prefect_rows.PATIENCE", 0.1)
    flows = CellFlowRows(database, PARENT)
    cell = flows.begin("cell", {}, [])
    with sqlite3.connect(database, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(InputError, match=r"prefect.db cannot be written .*locked"):
            flows.write(due=0.0)
        other.execute("ROLLBACK")
    cell.end("COMPLETED")
    flows.close()
    assert count(database, "flow_run") == 1, "nothing is lost by the wait"
    with pytest.raises(InputError, match="cannot be written"):
        CellFlowRows(database.with_name("empty.db"), PARENT)


def test_errors_of_a_run_are_failures_and_others_crashes():
    assert state_of(SiloError("ash", "lost", "x")) == state_of(InputError("x")) == "FAILED"
    assert state_of(KeyboardInterrupt()) == state_of(RuntimeError()) == state_of(asyncio.CancelledError()) == "CRASHED"
