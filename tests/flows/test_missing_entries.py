"""Entries of finished runs and sweeps that MLflow lacks (tag `fedcore.missing`), and that `fedcore resume` writes."""

from __future__ import annotations

from contextlib import contextmanager
from io import StringIO

import pytest

from fedcore.experiment.identity import run_id
from fedcore.home import Home
from flows.commands.run import _resume_sweep
from flows.driver.session import Session
from flows.launch import launch_sweep, save_sweep_folder
from flows.pages.links import is_missing, mlflow_page
from flows.pages.sweep_publication import SweepPublication
from flows.run_lock import store_path
from flows.runs import read_run
from flows.services.stale import left_behind
from flows.sweep_files import sweep_id
from flows.terminal.console import Terminal
from tasks.run_store import RunStore
from tasks.tracking_stores import close_stale
from tests.flows import test_former_sweeps
from tests.flows.driving import run
from tests.flows.test_former_sweeps import base, move_data, sweep

home = test_former_sweeps.home
TRACKED = {"base": {**base(), "tracking": {"mlflow": True}}, "grid": {"privacy.epsilon": [1, 2]}}


def leave_unpublished(home: Home, name: str) -> None:
    """Leaves a run like a driver that was killed before MLflow had all of it."""
    store = RunStore(store_path(home, name))
    store.set_meta(tracked=None)
    store.close()


def left(home: Home, config, noted: bool = True) -> None:
    """Leaves a finished sweep like a driver that was killed before MLflow had its end; `noted`: another one saw it."""
    with Session.of_driver(home) as session:
        SweepPublication(config, session).begin(6)
    if not noted:
        return
    assert close_stale(home.mlflow_uri, lambda kind, name: left_behind(home, name, kind)) == [sweep_id(config)]


@pytest.fixture
def driven(home, monkeypatch) -> list[str]:
    """Ids that commands drive, with a stand-in for the driver: no Prefect, and sweeps without cells."""
    driven_ids: list[str] = []

    @contextmanager
    def driver(home, progress, kind, cells):
        with Session.of_driver(home) as session:
            session.commanded = True

            def start(name, parameters):
                driven_ids.append(name)
                assert parameters["name"]
                if kind == "sweep":
                    publication = SweepPublication(config_of[name], session)
                    publication.begin(6)
                    publication.finish("FINISHED", None, [])
                else:
                    run(home, cells[0], session)

            yield start

    config_of: dict[str, object] = {}
    monkeypatch.setattr("flows.launch.driver", driver)
    driver_of = sweep(**TRACKED)
    config_of[sweep_id(driver_of)] = driver_of
    return driven_ids


@pytest.mark.parametrize("noted", [True, False])
def test_of_a_finished_sweep_they_are_written_by_resume(home, driven, capsys, noted):
    made = sweep(**TRACKED)
    save_sweep_folder(home, made)
    for cell in made.cells():
        run(home, cell)
    launch_sweep(made, None)
    assert not driven and not is_missing(home, sweep_id(made), made.cells())
    left(home, made, noted)
    assert is_missing(home, sweep_id(made), made.cells())
    _resume_sweep(home, sweep_id(made), True)
    assert driven == [sweep_id(made)] and not is_missing(home, sweep_id(made), made.cells())
    _resume_sweep(home, sweep_id(made), True)
    assert len(driven) == 1


def test_of_a_sweep_whose_cells_are_not_tracked_nothing_is_missing(home, driven):
    made, untracked = sweep(**TRACKED), sweep(**{**TRACKED, "base": base()})
    assert sweep_id(untracked) == sweep_id(made)
    save_sweep_folder(home, made)
    for cell in made.cells():
        run(home, cell)
    left(home, made)
    for _ in range(2):
        console = Terminal(file=StringIO())
        launch_sweep(untracked, console)
        assert not driven and "all 2 cells are finished" in console.file.getvalue()
    launch_sweep(made, None)
    assert driven == [sweep_id(made)]


def test_of_a_run_of_a_former_id_they_are_written_under_that_id(home, driven, capsys):
    made = sweep(**TRACKED)
    save_sweep_folder(home, made)
    for cell in made.cells():
        run(home, cell)
    name, ids = sweep_id(made), [run_id(cell) for cell in made.cells()]
    left(home, made)
    leave_unpublished(home, ids[1])
    move_data(home)
    assert not read_run(home, ids[1]).complete
    _resume_sweep(home, name, True)
    assert driven == [ids[1]] and read_run(home, ids[1]).complete
    assert {path.name for path in home.runs.iterdir()} == set(ids)
    assert mlflow_page(home, {"mlflow": ""}, ids[1]) is not None
    assert f"of sweep {name} itself cannot be written under its former id" in " ".join(capsys.readouterr().err.split())
