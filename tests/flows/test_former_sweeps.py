"""Saved sweeps whose ids change because their data were moved and replaced by a link.

The tests run cells and then turn the folder of their data into a link; no file of a run is renamed or rewritten.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedcore.errors import InputError
from fedcore.experiment.identity import run_id
from fedcore.experiment.sweep import SweepConfig
from fedcore.home import Home
from flows.cells.prefect_rows import CellFlowRows
from flows.commands.run import resume
from flows.commands.runs import runs as list_runs
from flows.commands.show import report
from flows.driver.session import Session
from flows.flow_runs import _fired as fired_run
from flows.launch import launch_run, launch_sweep, save_sweep_folder
from flows.recorded.former_ids import RecordedRuns
from flows.runs import read_run, store_path
from flows.sweep import _Cells, _count_in_step, _fired
from flows.sweep_files import is_complete, is_over, load_saved, sweep_id
from tasks.calls import in_step
from tasks.run_file import read_receipts
from tasks.run_store import RunStore
from tests.flows.driving import run
from tests.flows.test_patience import PARENT, make_home


@pytest.fixture
def home(tmp_path, monkeypatch) -> Home:
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    for seed, name in enumerate(("north", "south")):
        X = np.random.default_rng(seed).uniform(-1, 1, size=(40, 2)).round(3)
        text = "a,b,y\n" + "".join(f"{a},{b},{int(a > b)}\n" for a, b in X)
        (project / "data" / f"{name}.csv").write_text(text)
    monkeypatch.chdir(project)
    monkeypatch.setenv("FEDCORE_HOME", str(project / "home"))
    monkeypatch.setenv("COLUMNS", "400")
    return make_home(project / "home")


def base(ledger: str = "memory") -> dict:
    silos = [{"name": name, "path": f"data/{name}.csv"} for name in ("north", "south")]
    return {
        "data": {"source": "files", "silos": silos, "features": ["a", "b"], "label": "y"},
        "privacy": {"ledger": ledger},
        "algorithm": {"name": "mbsgd", "rounds": 3, "step": 0.5},
        "cluster": {"backend": "in-process"},
        "tracking": {"mlflow": False},
    }


def sweep(ledger: str = "memory", **patience) -> SweepConfig:
    values = {"name": "kept", "base": base(ledger), "grid": {"privacy.epsilon": [1, 2, 4]}}
    return SweepConfig.model_validate(values | patience)


def move_data(home: Home) -> None:
    data = home.root.parent / "data"
    data.rename(home.root.parents[1] / "disk")
    data.symlink_to(home.root.parents[1] / "disk")


def other_data(home: Home) -> None:
    """Puts another folder in the place of the data, with other records, and more of them at one silo."""
    project = home.root.parent
    other = project / "data-2024"
    other.mkdir()
    for seed, (name, rows) in enumerate({"north": 60, "south": 40}.items()):
        X = np.random.default_rng(10 + seed).uniform(-1, 1, size=(rows, 2)).round(3)
        text = "a,b,y\n" + "".join(f"{a},{b},{int(a > b)}\n" for a, b in X)
        (other / f"{name}.csv").write_text(text)
    (project / "data").rename(project / "data-small")
    (project / "data").symlink_to(other)


def stop(home: Home, name: str) -> None:
    store = RunStore(store_path(home, name))
    store.set_meta(state="KILLED", result=None)
    store.close()


def saved(home: Home, finished: int, stopped: int = 0, ledger: str = "memory") -> tuple[SweepConfig, str, list[str]]:
    """A sweep with finished, stopped and unbegun cells (in this order), whose data then move."""
    made = sweep(ledger)
    save_sweep_folder(home, made)
    name, ids = sweep_id(made), [run_id(cell) for cell in made.cells()]
    for cell in made.cells()[: finished + stopped]:
        run(home, cell)
    for each in ids[finished : finished + stopped]:
        stop(home, each)
    move_data(home)
    again = load_saved(home, name)
    assert sweep_id(again) != name and not {run_id(cell) for cell in again.cells()} & set(ids)
    return again, name, ids


def folders(home: Home) -> set[str]:
    return {path.name for path in (*home.runs.iterdir(), *home.sweeps.iterdir())}


def carry_out(home: Home, config: SweepConfig, commanded: bool = False) -> list:
    """Runs the cells as the sweep's flow does; returns results and errors in their order."""
    with Session.of_driver(home) as session:
        session.commanded = commanded
        flows = CellFlowRows(home.prefect / "prefect.db", PARENT)
        try:
            cells = _Cells(session, flows, sweep_id(config), 100, config.patience, {})
            calls = ((run_id(chain[0]), made) for chain, made in cells.chains(config))
            return [made for _, made in in_step(calls, _count_in_step(config.cells()))]
        finally:
            flows.close()


def test_a_finished_one_is_reported_and_resumed_under_its_own_ids(home, capsys):
    _, name, ids = saved(home, finished=3)
    before = folders(home)
    for command in (report, resume):
        command(name, as_json=True)
        values = json.loads(capsys.readouterr().out)
        assert values["sweep"] == name and [each["run"] for each in values["results"]] == ids
        assert [each["settings"] for each in values["results"]] == [{}] * 3 and values["silos"][0]["cells"] == 3
    assert (home.sweeps / name / "cells.csv").read_text().count("kept-") == 3
    assert folders(home) == before


@pytest.mark.parametrize("finished, stopped", [(2, 0), (1, 1), (0, 3)])
def test_one_with_cells_left_does_not_begin_anew_by_itself(home, capsys, finished, stopped):
    config, name, ids = saved(home, finished, stopped, ledger="sqlite")
    before = folders(home)
    text = rf"^sweep {name} cannot go on: .*{sweep_id(config)} .*{finished} of 3 cells finished.*sweep CONFIG"
    with pytest.raises(InputError, match=text):
        resume(name)
    assert folders(home) == before
    if finished:
        report(name, as_json=True)
        values = json.loads(capsys.readouterr().out)
        assert [each["run"] for each in values["results"]] == ids[:finished]
        left = [silo["cells_counted_in_full"] for silo in values["silos"]]
        assert left == [3 - finished] * 2 and values["silos"][0]["cells"] == 3  # it was one plan
    else:
        with pytest.raises(InputError, match=f"sweep {name} has no finished cell yet"):
            report(name)
    for each in ids[finished : finished + stopped]:
        with pytest.raises(InputError, match=rf"run {each} cannot go on: .*budget close {each}"):
            report(each)


def test_a_new_sweep_of_the_same_parameters_takes_finished_cells_over(home, capsys):
    config, _, ids = saved(home, finished=3)
    outcome = launch_sweep(config, Console(width=400))
    text = capsys.readouterr().out
    assert "3 of 3 cells ended under former ids (of paths as they were typed, or of where data were then)" in text
    assert [result.run for result in outcome.results] == ids and outcome.sweep == sweep_id(config)
    assert {path.name for path in home.runs.iterdir()} == set(ids)
    assert "one plan" not in outcome.statement  # its cells were begun before it was saved first


@pytest.mark.parametrize("ledger", ["memory", "sqlite"])
def test_where_flows_drive_cells_only_a_command_begins_stopped_ones_anew(home, ledger):
    config, _, ids = saved(home, finished=1, stopped=1, ledger=ledger)
    receipts = len(list(read_receipts(store_path(home, ids[0]))))
    finished, stopped, new = carry_out(home, config)
    assert finished.run == ids[0] and len(list(read_receipts(store_path(home, ids[0])))) == receipts
    assert isinstance(stopped, InputError) and f"run {ids[1]} cannot go on" in str(stopped)
    now = [run_id(cell) for cell in config.cells()]
    assert new.run == now[2]
    assert {path.name for path in home.runs.iterdir()} == {*ids[:2], now[2]}
    assert not is_complete(home, config) and is_over(home, config)
    assert [made.run for made in carry_out(home, config, commanded=True)] == [ids[0], *now[1:]]
    assert is_complete(home, config)


def test_a_command_prints_restarts_even_beside_json(home, capsys, monkeypatch):
    config, _, ids = saved(home, finished=2, stopped=1, ledger="sqlite")

    def driver(*_):
        raise InputError("asked to drive")

    monkeypatch.setattr("flows.launch.driver", driver)
    monkeypatch.setattr("flows.launch.is_missing", lambda *_: False)
    for begin in (lambda: launch_sweep(config, None), lambda: launch_run(config.cells()[2], None)):
        with pytest.raises(InputError, match="asked to drive"):
            begin()
        values = capsys.readouterr()
        assert values.out == "" and f"{ids[2]} of the same parameters stopped" in values.err
        assert "each at a charge of its own" in " ".join(values.err.split())


class Fires:
    """Stand-in for a schedule's firing, which counts repetitions."""

    def repetition(self, first, done):
        while done(first):
            first += 1
        return first


def test_a_schedule_does_not_count_its_repetitions_from_the_beginning_again(home):
    """Repetition 0 is finished, 1 was stopped: the next firing runs 2, and no repetition is charged again."""
    values = base() | {"name": "kept", "orchestration": {"scheduled": "repetition"}}
    values["privacy"] = {"epsilon": 1}
    made = SweepConfig.model_validate({"name": "kept", "base": values})
    for count in (0, 1):
        run(home, made.repeated(count).cells()[0])
    stop(home, run_id(made.repeated(1).cells()[0]))
    move_data(home)
    import flows.flow_runs as of_run
    import flows.sweep as of_sweep

    class Log:
        def info(self, _):
            pass

    patch = pytest.MonkeyPatch()
    for module in (of_run, of_sweep):
        patch.setattr(module, "get_run_logger", Log)
    try:
        assert _fired(made, Fires()).cells()[0].repetition == 2
        assert fired_run(made.cells()[0], Fires()).repetition == 2
    finally:
        patch.undo()


def test_with_patience_ladders_stand_as_their_runs_ended_before(home, capsys):
    rule = {"patience": {"key": "algorithm.step", "every": 1, "limit": 50}}
    values = {"base": {**base(), "privacy": {"epsilon": 2}}, "grid": {"algorithm.step": [0.5, 0.25]}}
    values["base"]["tracking"] = {"mlflow": False, "evaluate_every": 1, "simulation_metrics": True}
    made = sweep(**values, **rule)
    save_sweep_folder(home, made)
    (result,) = [each for each in carry_out(home, made) if not isinstance(each, Exception)]
    name = sweep_id(made)
    move_data(home)
    again = load_saved(home, name)
    report(name, as_json=True)
    values = json.loads(capsys.readouterr().out)
    assert values["ladders"][0]["run"] == result.run and values["ladders"][0]["open"] == []
    assert [each.run for each in carry_out(home, again)] == [result.run]


def test_the_list_marks_sweeps_and_runs_that_cannot_be_resumed(home, capsys):
    config, name, ids = saved(home, finished=1, stopped=1)
    list_runs()
    text = " ".join(capsys.readouterr().out.split())
    assert f"sweep {name}: 1 of 3 cells finished; its data make it {sweep_id(config)} now" in text
    assert f"run {ids[1]} cannot go on" in text and f"run {ids[0]} cannot" not in text


def test_moved_back_it_is_what_it_was(home, capsys):
    _, name, ids = saved(home, finished=3)
    data = home.root.parent / "data"
    data.unlink()
    (home.root.parents[1] / "disk").rename(data)
    again = load_saved(home, name)
    assert sweep_id(again) == name and RecordedRuns(home).runs(again.cells()) == {each: each for each in ids}
    assert read_run(home, ids[0]).complete and Path(again.cells()[0].data.silos[0].path).is_file()


def finished(home: Home, ledger: str = "memory") -> tuple[SweepConfig, str, list[str]]:
    """A sweep whose cells all finish before its data move."""
    made = sweep(ledger)
    save_sweep_folder(home, made)
    for cell in made.cells():
        run(home, cell)
    return made, sweep_id(made), [run_id(cell) for cell in made.cells()]


def test_a_finished_run_on_other_data_stands_for_nothing(home, capsys):
    """With another folder in the place of the data, the same config has other records, and runs."""
    _, name, ids = finished(home)
    other_data(home)
    again = load_saved(home, name)
    now = [run_id(cell) for cell in again.cells()]
    runs = RecordedRuns(home)
    assert list(runs.runs(again.cells()).values()) == now and runs.taken_over(again.cells()) is None
    assert not is_complete(home, again) and not is_over(home, again)
    results = carry_out(home, again)
    assert [made.run for made in results] == now and {silo.silo: silo.n for silo in results[0].silos} == {
        "north": 60,
        "south": 40,
    }
    first = launch_run(again.cells()[0], None)
    assert first.run == now[0] and capsys.readouterr().err == ""
    report(name, as_json=True)  # results of the former data are shown under their own id
    assert [each["run"] for each in json.loads(capsys.readouterr().out)["results"]] == ids


def test_a_stopped_run_on_other_data_keeps_none_from_beginning(home):
    _, name, ids = finished(home)
    stop(home, ids[0])
    other_data(home)
    again = load_saved(home, name)
    assert RecordedRuns(home).stopped(again.cells()) == []
    assert [made.run for made in carry_out(home, again)] == [run_id(cell) for cell in again.cells()]


def forget_digests(home: Home, ids: list[str]) -> None:
    """Removes the digests, which checkpoints of guarded silos and of older versions lack."""
    for each in ids:
        store = RunStore(store_path(home, each))
        store.set_meta(files=None, files_key=None)
        store.close()


def test_a_run_without_digests_is_marked_as_doubtful(home, capsys):
    _, _, ids = finished(home)
    forget_digests(home, ids)
    move_data(home)
    cell = SweepConfig.model_validate(sweep().model_dump()).cells()[0]
    assert launch_run(cell, None).run == ids[0]
    text = " ".join(capsys.readouterr().err.split())
    assert f"{ids[0]} may be of other data than those that are there now" in text
    outcome = launch_sweep(sweep(), None)
    text = " ".join(capsys.readouterr().err.split())
    assert [each.run for each in outcome.results] == ids and f"{ids[0]} and 2 more may be of other data" in text


def test_without_digests_other_sizes_show_other_data(home):
    _, name, ids = finished(home)
    forget_digests(home, ids)
    other_data(home)
    again = load_saved(home, name)
    assert RecordedRuns(home).runs(again.cells()) == {run_id(cell): run_id(cell) for cell in again.cells()}


def test_with_the_same_bytes_elsewhere_nothing_is_in_doubt(home, capsys):
    _, _, ids = finished(home)
    move_data(home)
    assert [each.run for each in launch_sweep(sweep(), None).results] == ids
    text = " ".join(capsys.readouterr().err.split())
    assert "3 of 3 cells ended under former ids" in text and "may be of other data" not in text
