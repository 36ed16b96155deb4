"""Flow runs that a killed driver left RUNNING: which are ended, in which state, and the second look before.

The server is a stand-in that holds one flow run; test_services.py and test_deployments.py have the real one.
"""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.states import Completed, Pending, Running

from fedcore.errors import BusyError, InputError
from fedcore.experiment.identity import SCHEMA, run_id
from fedcore.experiment.sweep import SweepConfig
from fedcore.home import Home
from flows import run_lock
from flows.launch import save_sweep_folder
from flows.run_lock import drive_lock, is_driven, store_path
from flows.services.stale import BEGINNING, StaleWatch, _begins, _closed, left_behind
from flows.sweep_files import driven_by, save_sweep, sweep_id
from tasks.run_store import RunStore
from tests.flows.results import made_result

RUN = "raced-0123456789ab"


class Server:
    """Stand-in server with one flow run, whose state may have changed since it was listed."""

    def __init__(self, home: Home, state) -> None:
        self.home, self.state, self.ended = home, state, []

    def read_flow_run(self, identity: UUID) -> FlowRun:
        return FlowRun(id=identity, flow_id=uuid4(), state=self.state)

    def read_task_runs(self, **_) -> list:
        return []

    def set_flow_run_state(self, identity: UUID, state, force: bool) -> None:
        assert not is_driven(self.home, RUN), "a look is no driver"
        kind = "sweep" if (self.home.sweeps / RUN).is_dir() else "run"
        with pytest.raises(BusyError, match="another process has looked at it"), drive_lock(self.home, RUN, kind):
            raise AssertionError(f"no driver has the {kind} while its flow run is ended")
        self.state = state
        self.ended.append((identity, state.type.value))


def listed(**other) -> FlowRun:
    return FlowRun(id=uuid4(), flow_id=uuid4(), state=Running(), tags=[f"run:{RUN}"], **other)


@pytest.fixture
def home(tmp_path, monkeypatch) -> Home:
    monkeypatch.setattr(run_lock, "LOOK", 0.05)
    monkeypatch.setattr(run_lock, "LOOKED", 0.0)
    return Home(tmp_path / "home").make()


def write_meta(home: Home, **meta: str) -> None:
    with closing(RunStore(store_path(home, RUN))) as store:
        store.set_meta(**meta)


def test_what_ended_since_it_was_listed_stays_as_it_ended(home):
    write_meta(home, state="RUNNING")
    server = Server(home, Completed())
    assert not _closed(server, home, listed()) and not server.ended


def test_what_is_driven_by_now_is_left_alone(home):
    server = Server(home, Running())
    with drive_lock(home, RUN):
        assert not _closed(server, home, listed())
    assert not server.ended


@pytest.mark.parametrize(
    "state, own, ends",
    [
        ("RUNNING", True, "CRASHED"),
        ("KILLED", True, "CRASHED"),
        ("FINISHED", True, "COMPLETED"),
        ("FINISHED", False, "CRASHED"),
    ],
)
def test_what_was_left_ends_as_its_checkpoint_says(home, state, own, ends):
    """A killed flow run becomes Crashed even if a later one has finished its run."""
    flow_run, server = listed(), Server(home, Running())
    write_meta(home, state=state, flow_run_id=str(flow_run.id if own else uuid4()))
    assert _closed(server, home, flow_run)
    assert server.ended == [(flow_run.id, ends)]
    assert not _closed(server, home, flow_run) and len(server.ended) == 1


def test_what_a_schedule_has_just_made_is_left_to_its_process(home):
    now, before = datetime.now(UTC), datetime.now(UTC) - 2 * BEGINNING
    assert _begins(FlowRun(flow_id=uuid4(), state=Pending(timestamp=now)))
    assert _begins(FlowRun(flow_id=uuid4(), state=Running(timestamp=now), auto_scheduled=True))
    assert not _begins(FlowRun(flow_id=uuid4(), state=Running(timestamp=now)))
    assert not _begins(FlowRun(flow_id=uuid4(), state=Pending(timestamp=before)))
    assert timedelta(seconds=10) < BEGINNING


def swept(home: Home, monkeypatch, flow_run: UUID | None, cells: int = 2) -> SweepConfig:
    """A saved sweep of two cells, of which the first `cells` are finished."""
    monkeypatch.setenv("FEDCORE_HOME", str(home.root))
    base = {"privacy": {"epsilon": 1}, "algorithm": {"name": "mbsgd", "rounds": 2}, "tracking": {"mlflow": False}}
    made = SweepConfig.model_validate({"name": "s", "base": base, "grid": {"seed": [0, 1]}})
    (home.sweeps / sweep_id(made)).mkdir(parents=True)
    save_sweep(home, made, None if flow_run is None else str(flow_run))
    for cell in made.cells()[:cells]:
        result = made_result(run=run_id(cell))
        with closing(RunStore(store_path(home, run_id(cell)))) as store:
            store.set_meta(
                state="FINISHED", parameters=cell.model_dump_json(), schema=SCHEMA, result=json.dumps(result.as_json())
            )
    return made


@pytest.mark.parametrize(
    "cells, own, ends, message",
    [
        (2, True, "COMPLETED", "its sweep is finished"),
        (2, False, "CRASHED", "another one finished"),
        (1, True, "CRASHED", "`fedcore resume` goes on"),
    ],
)
def test_a_sweep_s_flow_run_ends_by_its_files(home, monkeypatch, cells, own, ends, message):
    identity = uuid4()
    made = swept(home, monkeypatch, identity if own else uuid4(), cells)
    flow_run = FlowRun(id=identity, flow_id=uuid4(), state=Running(), tags=[f"sweep:{sweep_id(made)}"])
    server = Server(home, Running())
    monkeypatch.setattr("tests.flows.test_stale_flow_runs.RUN", sweep_id(made))
    assert _closed(server, home, flow_run)
    assert server.ended == [(identity, ends)] and message in server.state.message
    save_sweep(home, made)  # a command starts it again
    assert driven_by(home, sweep_id(made)) is None


def test_what_cannot_be_read_is_not_judged(home, monkeypatch, capsys):
    """Damaged are a run's checkpoint, a sweep's file and a cell of a sweep; their status is then unknown."""
    write_meta(home, state="FINISHED")
    made = swept(home, monkeypatch, None, 1)
    sweep, first = sweep_id(made), run_id(made.cells()[0])

    def ended(name, kind):
        with left_behind(home, name, kind) as status:
            return status

    assert (ended(RUN, "run"), ended(first, "run"), ended(sweep, "sweep")) == ("FINISHED", "FINISHED", "KILLED")
    for path in (store_path(home, RUN), store_path(home, first)):
        path.write_bytes(b"no database" * 1000)
    server = Server(home, Running())
    assert not _closed(server, home, listed()) and not server.ended
    assert ended(RUN, "run") is ended(sweep, "sweep") is None
    (home.sweeps / sweep / "sweep.json").write_text("{")
    assert ended(sweep, "sweep") is None
    errors = " ".join(capsys.readouterr().err.split())
    assert errors.count(f"how run {RUN} ended is left open: ") == 1
    assert errors.count(f"how sweep {sweep} ended is left open: ") == 1
    assert errors.count("cannot be read") == 2
    store_path(home, RUN).write_bytes(b"")
    assert ended(RUN, "run") == "KILLED"
    assert ended("gone-0123456789ab", "run") == ended("gone-0123456789ab", "sweep") == "KILLED"


def test_one_run_of_another_version_keeps_no_flow_run_from_being_closed(home):
    write_meta(home, state="RUNNING", parameters="{}", schema="0")
    assert not StaleWatch(home)._is_over(listed())


def test_a_second_command_leaves_a_driver_s_flow_run_where_it_is_noted(home, monkeypatch):
    """The command saves the sweep before it tries the lock, which the first driver has."""
    identity = uuid4()
    made = swept(home, monkeypatch, identity, 1)
    save_sweep_folder(home, made)
    assert driven_by(home, sweep_id(made)) == str(identity)


def test_the_reason_for_an_unknown_status_is_printed(home, monkeypatch, capsys):
    """With patience, ladders need a plan, and the plan the data: these are missing, not the sweep's files."""
    made = swept(home, monkeypatch, None, 1)

    def away(*_):
        raise InputError("data.silos.a: there is no file /away/a.csv")

    monkeypatch.setattr("flows.services.stale.is_decided", away)
    monkeypatch.setattr("flows.services.stale._reported", set())
    with left_behind(home, sweep_id(made), "sweep") as status:
        assert status is None
    assert "ended is left open: data.silos.a: there is no file" in " ".join(capsys.readouterr().err.split())
