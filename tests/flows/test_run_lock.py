"""Locks of runs: who may drive a run and change its recorded state, and runs that end while another driver starts."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from fedcore.errors import BusyError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import run_id
from fedcore.home import Home
from flows import run_lock
from flows.run_lock import LOOK, drive_lock, held_undriven, is_driven, refuse_if_driven, store_path, unless_driven
from flows.services import stale
from flows.services.stale import left_behind
from tasks.mlflow.database import open_database
from tasks.mlflow.store import MlflowStore
from tasks.mlflow.tables import MlflowTables
from tasks.run_file import read_meta
from tasks.tracking_stores import close_stale
from tests.patience import HANGS

ROOT = Path(__file__).parents[2]
HOLDER = """
import sys, time
from pathlib import Path
from fedcore.home import Home
from flows.run_lock import drive_lock
with drive_lock(Home(Path(sys.argv[1])), "run-a"):
    print("has it", flush=True)
    sys.stdin.read()
"""
DRIVER = """
import json, sys, time
from pathlib import Path
from fedcore.experiment.config import ExperimentConfig
from fedcore.home import Home
from flows.driver.session import Session
from flows.training import train as train_run
from tests.flows.driving import train

place, made = Path(sys.argv[1]), ExperimentConfig.model_validate(json.loads(sys.argv[2]))

def rounds(training):
    train(training)
    assert session.tracker.flush(60)
    (place / "trained").touch()
    while not (place / "go").exists():
        time.sleep(0.02)

with Session.of_driver(Home.current().make()) as session:
    train_run(made, session, rounds)
    (place / "driven").touch()
"""


def until(happens) -> None:
    end = time.monotonic() + HANGS
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def home(tmp_path) -> Home:
    return Home(tmp_path / "home").make()


def test_a_held_lock_admits_drivers_of_this_process_only_until_its_release(home):
    with drive_lock(home, "run-a") as lock:
        release = lock.hold()
        with pytest.raises(BusyError, match="run-a is being driven by process"), drive_lock(home, "run-a"):
            pass
    assert is_driven(home, "run-a")
    with unless_driven(home, "run-a") as held:
        assert not held
    with drive_lock(home, "run-a") as again:
        assert again is lock
        release()
        release()
        assert is_driven(home, "run-a")
    assert not is_driven(home, "run-a")
    with unless_driven(home, "run-a") as held:
        assert held and not is_driven(home, "run-a")


def test_a_foreign_id_is_never_locked_and_touches_no_file(home, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "lock").write_text("mine")
    for name in ("../../elsewhere", str(tmp_path / "elsewhere"), "", ".", "..", "a/b", "x" * 129):
        with unless_driven(home, name) as held:
            assert not held
    with unless_driven(home, "gone") as held:
        assert held
    assert (tmp_path / "elsewhere" / "lock").read_text() == "mine" and not (home.runs / "gone").exists()


def test_looking_who_drives_a_run_keeps_no_driver_and_no_other_look_away(home):
    """`fedcore runs` checks every run that is RUNNING; a driver that starts meanwhile is not refused."""
    with drive_lock(home, "run-a"):
        pass
    ended, wrong, looks = threading.Event(), [], []

    def look() -> None:
        while not ended.is_set():
            looks.append(is_driven(home, "run-b"))

    with drive_lock(home, "run-b"):
        pass
    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    seen = list(looks)
    for _ in range(20):
        try:
            with drive_lock(home, "run-b"):
                pass
        except BusyError as busy:
            wrong.append(busy)
    ended.set()
    for thread in threads:
        thread.join()
    assert len(seen) > 10 and not any(seen) and not wrong


@pytest.fixture
def left(home, monkeypatch) -> Callable[[], list[str]]:
    """Closes, in MLflow's tables, a sweep and two runs that killed drivers left there, in this order."""
    monkeypatch.setattr(stale, "_sweep_ended", lambda *_: "KILLED")
    open_database(home.mlflow_uri, home.mlflow_artifacts).close()
    store = MlflowStore(home.mlflow_uri, home.mlflow_artifacts, home.root / "cache")
    for place, (kind, name) in enumerate([("sweep", "sweep-a"), ("experiment", "run-a"), ("experiment", "run-b")]):
        folder = home.sweeps if kind == "sweep" else home.runs
        (folder / name).mkdir(parents=True)
        tags = {"fedcore.run_id": name, "fedcore.kind": kind}
        with store._tables.transaction():
            store._opened.find_or_create("tests", name, tags, 1000 + place)
    store.close()
    return lambda: close_stale(home.mlflow_uri, lambda kind, name: left_behind(home, name, kind))


def statuses(home: Home) -> dict[str, str]:
    with closing(sqlite3.connect(home.mlflow_database)) as db:
        return dict(db.execute("SELECT name, status FROM runs"))


def test_drivers_start_while_another_process_is_slow_to_find_the_end_of_a_sweep(home, left, monkeypatch):
    """The status of a sweep of 1,500 cells takes seconds: neither its own driver nor that of a run gives up."""
    looks, ends, closed = threading.Event(), threading.Event(), []

    def judged(*_) -> str:
        looks.set()
        assert ends.wait(HANGS)
        return "KILLED"

    monkeypatch.setattr(stale, "_sweep_ended", judged)
    looker = threading.Thread(target=lambda: closed.extend(left()))
    looker.start()
    assert looks.wait(HANGS)
    try:
        assert not is_driven(home, "sweep-a"), "a look is no driver"
        refuse_if_driven(home, "run-a")
        began = time.monotonic()
        for run in ("run-a", "run-b"):
            with drive_lock(home, run):
                pass
        with closing(sqlite3.connect(home.mlflow_database, timeout=0.1, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")  # the status is read before the database is locked
            db.execute("ROLLBACK")
        assert time.monotonic() - began < LOOK
        ending = threading.Timer(3 * LOOK, ends.set)
        ending.start()
        with drive_lock(home, "sweep-a", "sweep"):
            assert ends.is_set() and is_driven(home, "sweep-a")
            looker.join()
            assert statuses(home) == dict.fromkeys(("sweep-a", "run-a", "run-b"), "KILLED")
    finally:
        ends.set()
        looker.join()
    assert closed == ["sweep-a", "run-a", "run-b"]


def test_a_status_is_written_while_its_run_alone_is_locked(home, left, monkeypatch):
    held, written = ["sweep-a", "run-a", "run-b"], []
    set_status = MlflowTables.set_status
    monkeypatch.setattr(run_lock, "LOOK", 0.05)
    monkeypatch.setattr(run_lock, "LOOKED", 0.0)

    def is_locked(name: str) -> bool:
        try:
            with drive_lock(home, name, "sweep" if name == "sweep-a" else "run"):
                return False
        except BusyError as busy:
            assert "no driver has it, but another process has looked at it" in str(busy)
            return True

    def write(tables, *values) -> None:
        written.append([name for name in held if is_locked(name)])
        set_status(tables, *values)

    monkeypatch.setattr(MlflowTables, "set_status", write)
    assert left() == held and written == [[name] for name in held]


def test_what_a_driver_has_by_then_stays_as_it_is(home, left):
    with drive_lock(home, "run-a"), drive_lock(home, "sweep-a", "sweep"):
        assert left() == ["run-b"]
    assert statuses(home) == {"sweep-a": "RUNNING", "run-a": "RUNNING", "run-b": "KILLED"}


def test_two_may_look_at_a_run_at_once_and_its_driver_waits_for_both(home):
    with drive_lock(home, "run-a"):
        pass
    had = []

    def drives() -> None:
        with drive_lock(home, "run-a"):
            had.append(time.monotonic())

    driver = threading.Thread(target=drives)
    with unless_driven(home, "run-a") as one:
        with unless_driven(home, "run-a") as two, held_undriven(home, "run-a"):
            assert one and two
            driver.start()
            time.sleep(1.5 * LOOK)
        time.sleep(0.1)
        ended = time.monotonic()
    driver.join()
    assert len(had) == 1 and had[0] > ended


def test_another_process_has_it_until_it_ends(home):
    command = [sys.executable, "-c", HOLDER, str(home.root)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "has it\n"
        assert is_driven(home, "run-a")
        with pytest.raises(BusyError), drive_lock(home, "run-a"):
            pass
        with unless_driven(home, "run-a") as held:
            assert not held
        holder.kill()
    assert not is_driven(home, "run-a")


@pytest.mark.minutes
@pytest.mark.slow
def test_a_run_that_ends_under_a_lock_on_mlflows_database_stays_finished_when_another_driver_starts(
    tmp_path, monkeypatch
):
    """Another driver has listed the RUNNING runs and is slow to check again: the run's last entries come first."""
    from flows.driver.session import Session

    config = {
        "name": "raced",
        "cluster": {"backend": "in-process"},
        "data": {"source": "synthetic", "silos": 2, "records": 60, "features": 5, "test_records": 40},
        "algorithm": {"name": "mbsgd", "rounds": 3},
        "privacy": {"epsilon": 3},
    }
    run = run_id(ExperimentConfig.model_validate(config))
    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path / "home"))
    home = Home.current().make()
    open_database(home.mlflow_uri, home.mlflow_artifacts).close()
    command = [sys.executable, "-c", DRIVER, str(tmp_path), json.dumps(config)]
    runs, slow = MlflowTables.runs, threading.Event()

    def slowly(*asked, **status):
        found = runs(*asked, **status)
        slow.set()
        time.sleep(3.0)
        return found

    driver = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)})
    try:
        until((tmp_path / "trained").exists)
        with closing(sqlite3.connect(home.mlflow_database, isolation_level=None, timeout=HANGS)) as other:
            other.execute("BEGIN IMMEDIATE")
            (tmp_path / "go").touch()
            until((tmp_path / "driven").exists)
            assert read_meta(store_path(home, run))["state"] == "FINISHED"
            assert is_driven(home, run)  # its entries wait
            monkeypatch.setattr(MlflowTables, "runs", slowly)
            session = Session(home)
            assert session.tracker is not None and slow.wait(HANGS)
            other.execute("ROLLBACK")
        assert driver.wait(HANGS) == 0
        session.close()
    finally:
        driver.kill()
        driver.wait()
    with closing(sqlite3.connect(home.mlflow_database)) as found:
        stand = found.execute("SELECT status, COUNT(*) FROM runs GROUP BY status").fetchall()
    assert stand == [("FINISHED", 2)] and not is_driven(home, run)
    assert "tracked" in read_meta(store_path(home, run))
