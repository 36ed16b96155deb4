"""Flow runs that a killed driver left RUNNING: which are ended, how, and what is looked at again before.

The server is a stand-in that holds one flow run; test_services.py and test_deployments.py have the real one.
"""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.states import Completed, Pending, Running

from fedcore.errors import BusyError
from fedcore.home import Home
from flows import run_lock
from flows.run_lock import drive_lock, is_driven, store_path
from flows.services.stale import BEGINNING, _begins, _closed
from tasks.run_store import RunStore

RUN = "raced-0123456789ab"


class Server:
    """Answers for one flow run, whose state may have changed since it was listed."""

    def __init__(self, home: Home, state) -> None:
        self.home, self.state, self.ended = home, state, []

    def read_flow_run(self, identity: UUID) -> FlowRun:
        return FlowRun(id=identity, flow_id=uuid4(), state=self.state)

    def read_task_runs(self, **_) -> list:
        return []

    def set_flow_run_state(self, identity: UUID, state, force: bool) -> None:
        assert not is_driven(self.home, RUN), "a look is no driver"
        with pytest.raises(BusyError, match="another process has looked at it"), drive_lock(self.home, RUN):
            raise AssertionError("no driver has the run while its flow run is ended")
        self.state = state
        self.ended.append((identity, state.type.value))


def listed(**other) -> FlowRun:
    return FlowRun(id=uuid4(), flow_id=uuid4(), state=Running(), tags=[f"run:{RUN}"], **other)


@pytest.fixture
def home(tmp_path, monkeypatch) -> Home:
    monkeypatch.setattr(run_lock, "LOOK", 0.05)
    monkeypatch.setattr(run_lock, "LOOKED", 0.0)
    return Home(tmp_path / "home").make()


def kept(home: Home, **meta: str) -> None:
    with closing(RunStore(store_path(home, RUN))) as store:
        store.set_meta(**meta)


def test_what_ended_since_it_was_listed_stays_as_it_ended(home):
    kept(home, state="RUNNING")
    server = Server(home, Completed())
    assert not _closed(server, home, listed()) and not server.ended


def test_what_is_driven_by_now_is_left_alone(home):
    server = Server(home, Running())
    with drive_lock(home, RUN):
        assert not _closed(server, home, listed())
    assert not server.ended


@pytest.mark.parametrize("state, own, ends", [
    ("RUNNING", True, "CRASHED"), ("KILLED", True, "CRASHED"), ("FINISHED", True, "COMPLETED"),
    ("FINISHED", False, "CRASHED"),
])  # fmt: skip
def test_what_was_left_ends_as_its_checkpoint_says(home, state, own, ends):
    """A flow run that was killed stays so when a later one has finished its run."""
    flow_run, server = listed(), Server(home, Running())
    kept(home, state=state, flow_run_id=str(flow_run.id if own else uuid4()))
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
