"""Checks followed by writes, with another process in between: no write is lost, and none is made twice."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import closing
from datetime import UTC, datetime
from types import SimpleNamespace
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from fedcore.errors import BusyError, InputError, SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.experiment.identity import SCHEMA, run_id
from fedcore.federation.rounds import rounds
from fedcore.home import Home
from fedcore.ledger.file_lock import hold
from fedcore.ledger.operator.register import Register
from fedcore.silo.registration import register_silos
from flows import runs as runs_on_disk
from flows.commands import arguments
from flows.commands.accounts.budget import app as budget
from flows.run_lock import drive_lock, store_path
from flows.runs import read_run
from flows.schedules import schedule
from flows.schedules.schedule import When
from flows.services import database
from tasks.run_file import mark
from tasks.run_store import RunStore


@pytest.fixture
def home(tmp_path, monkeypatch) -> Home:
    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path / "home"))
    return Home.current().make()


def config(**sections) -> ExperimentConfig:
    values = {
        "data": {"source": "synthetic", "silos": 2, "records": 40, "features": 3},
        "privacy": {"epsilon": 2, "delta": 1e-5, "ledger": "sqlite"},
        "algorithm": {"name": "mbsgd", "rounds": 6},
    }
    return ExperimentConfig.model_validate(values | sections)


def test_the_same_records_get_no_second_account_from_a_process_that_registers_them_meanwhile(
    home, tmp_path, monkeypatch, register_folder
):
    """Each process holds its own silo's account, and found no such records in the register."""
    (tmp_path / "a.csv").write_text("age,ill\n" + "".join(f"{number},{number % 2}\n" for number in range(9)))
    (tmp_path / "b.csv").write_bytes((tmp_path / "a.csv").read_bytes())

    def sources(name: str):
        made = config(
            data={
                "source": "files",
                "features": {"age": {"range": [0, 9]}},
                "label": "ill",
                "classes": [0, 1],
                "silos": [{"name": name, "path": str(tmp_path / f"{name}.csv")}],
            }
        )
        return Experiment.prepare(made, home.silos).dataset.sources

    a, b = sources("a"), sources("b")

    def clock() -> datetime:
        if Register.current("b").accounts.find("b") is None:
            register_silos(b, home.ledger_folders, True, lambda *_: False, lambda: datetime.now(UTC))
        return datetime.now(UTC)

    with pytest.raises(SiloError, match="its records are those of silo b, which has their account"):
        register_silos(a, home.ledger_folders, True, lambda *_: False, clock)
    accounts = Register.current("a").accounts
    assert accounts.find("a") is None and accounts.find("b") is not None


class Prefect:
    """Stand-in for a slow server with two deployments, which keeps names unique only within each."""

    def __init__(self) -> None:
        self.held = {kind: SimpleNamespace(id=uuid4(), schedules=[], parameters={}) for kind in ("run", "sweep")}

    def read_deployment_by_name(self, name: str):
        return self.held[name.partition("/")[0]]

    def create_deployment_schedules(self, deployment, schedules):
        time.sleep(0.3)
        made = SimpleNamespace(**{**schedules[0].model_dump(), "id": uuid4(), "active": True})
        next(each for each in self.held.values() if each.id == deployment).schedules.append(made)
        return [made]


def test_of_two_schedules_of_one_name_that_are_added_at_once_one_is_refused(home):
    client, refused = Prefect(), []

    def add(kind) -> None:
        try:
            schedule.add(client, kind, "nightly", When(cron="0 3 * * *"), {"name": kind})
        except InputError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=add, args=(kind,)) for kind in ("run", "sweep")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(schedule.schedules(client)) == 1 and "there is a schedule 'nightly' already" in refused[0]


def test_a_name_that_two_schedules_have_stops_neither_alone(home):
    """Prefect's page can create such schedules. Pausing only the first would let the other fire."""
    client, made = Prefect(), []
    for kind in ("run", "sweep"):
        when = SimpleNamespace(cron="0 3 * * *", timezone="UTC", interval=None)
        made.append(SimpleNamespace(id=uuid4(), slug="nightly", schedule=when, active=True, parameters={"name": kind}))
        client.held[kind].schedules.append(made[-1])
    with pytest.raises(InputError, match=r"2 schedules are called 'nightly'.*run run.*sweep sweep"):
        schedule.find(client, "nightly")
    assert schedule.find(client, str(made[1].id)[:8]).id == made[1].id


def test_a_run_that_is_driven_is_closed_at_no_silo(home):
    with drive_lock(home, "run-a"), pytest.raises(BusyError, match="run-a is being driven"):
        CliRunner().invoke(budget, ["close", "run-a"], catch_exceptions=False)


def test_closing_that_stops_at_a_silo_names_the_silos_closed_before(home, capsys, monkeypatch):
    made = Experiment.prepare(config(), home.silos)
    backend = made.in_process(home.ledger_folders)
    backend.open()
    next(rounds(made.context, made.config.algorithm.init(made.start()), backend.ask))
    backend.close()
    (_, first), (version, second) = home.ledger_folders.found()
    monkeypatch.setattr("fedcore.ledger.file_lock.PATIENCE", 0.1)
    held = hold(second, *home.ledger_folders.of(version, second))
    try:
        done = CliRunner().invoke(budget, ["close", made.run])
    finally:
        os.close(held)
    assert done.exit_code and isinstance(done.exception, SiloError)
    output = done.output + capsys.readouterr().out
    assert f"run {made.run} is closed at {first}, and not at the silos after these" in " ".join(output.split())


def test_a_checkpoint_that_was_deleted_is_not_made_anew_by_a_mark(tmp_path):
    mark(tmp_path / "gone" / "checkpoint.sqlite", tracked="yes")
    mark(tmp_path / "checkpoint.sqlite", tracked="yes")
    assert not list(tmp_path.iterdir())


def test_a_run_that_ends_while_it_is_looked_at_is_no_killed_one(home, monkeypatch):
    made = config()
    run = run_id(made)
    with closing(RunStore(store_path(home, run))) as store:
        store.set_meta(state="RUNNING", parameters=made.model_dump_json(), rounds=6, schema=SCHEMA)

        def ends(*_) -> bool:
            store.set_meta(state="FAILED", message="it diverged")
            return False

        monkeypatch.setattr(runs_on_disk, "is_driven", ends)
        record = read_run(home, run)
    assert record is not None and (record.state, record.message) == ("FAILED", "it diverged")


def test_a_database_that_another_driver_made_meanwhile_stays(home, tmp_path, monkeypatch):
    """The other driver's server has the database open; replacing the file would lose its writes."""
    empty = tmp_path / "empty.db"
    with closing(sqlite3.connect(empty)) as db:
        db.execute("CREATE TABLE flow (id)")

    def template():
        with closing(sqlite3.connect(home.prefect / "prefect.db")) as db:
            db.execute("CREATE TABLE flow (id)")
            db.execute("INSERT INTO flow VALUES (1)")
            db.commit()
        return empty

    home.prefect.mkdir()
    monkeypatch.setattr(database, "make_template", template)
    database.make_database(home)
    with closing(sqlite3.connect(home.prefect / "prefect.db")) as db:
        assert db.execute("SELECT id FROM flow").fetchall() == [(1,)]
    assert [path.name for path in home.prefect.iterdir()] == ["prefect.db"]


def test_a_file_that_came_since_it_was_looked_for_is_not_replaced_nor_deleted(tmp_path, monkeypatch):
    mine, written = tmp_path / "mine.yaml", []

    def somebody(file: int):
        if not written:
            written.append(mine.write_text("theirs"))
        return fstat(file)

    fstat = arguments.os.fstat
    monkeypatch.setattr(arguments.os, "fstat", somebody)
    arguments.check_output(mine, tmp_path)
    monkeypatch.setattr(arguments.os, "fstat", fstat)
    assert written and mine.read_text() == "theirs"
    with pytest.raises(InputError, match="is there already"):
        arguments.write_new_output(mine, "ours")
    assert mine.read_text() == "theirs"
    arguments.check_output(tmp_path / "new.yaml", mine)
    arguments.write_new_output(tmp_path / "newer.yaml", "ours")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.yaml", "newer.yaml"]


def test_two_columns_that_become_one_feature_are_refused(home, tmp_path):
    (tmp_path / "n.csv").write_text("sex,sex=f,ill\n" + "f,1,0\nm,0,1\n" * 9)
    made = config(
        data={
            "source": "files",
            "label": "ill",
            "classes": [0, 1],
            "features": {"sex": {"categories": ["f", "m"]}, "sex=f": {"range": [0, 1]}},
            "silos": [{"name": "n", "path": str(tmp_path / "n.csv")}],
        }
    )
    with pytest.raises(InputError, match="two columns become one feature 'sex=f'"):
        Experiment.prepare(made, home.silos)
