"""Number of reads in the search for runs of former ids: a home may hold thousands of runs."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

import flows.recorded.former_runs as former_runs
import flows.services.stale as stale
from fedcore.experiment.identity import run_id
from fedcore.experiment.sweep import SweepConfig
from flows.launch import save_sweep_folder
from flows.recorded.former_ids import RecordedRuns
from flows.sweep_files import all_sweeps, load_saved, sweep_id
from tests.flows import test_former_sweeps
from tests.flows.driving import run
from tests.flows.test_former_sweeps import base, finished, move_data

home = test_former_sweeps.home


@pytest.fixture
def scanned(monkeypatch) -> list[str]:
    """Runs whose parameters were read, and runs that were validated."""
    seen: list[str] = []
    read, validated = former_runs.read_meta, former_runs.read_run
    monkeypatch.setattr(former_runs, "_KNOWN", {})
    monkeypatch.setattr(former_runs, "read_meta", lambda path: seen.append(f"read {path.parent.name}") or read(path))
    monkeypatch.setattr(former_runs, "read_run", lambda home, run: seen.append(f"run {run}") or validated(home, run))
    return seen


def unfinished(home, first: int) -> str:
    grid = {"repetition": [first, first + 1]}
    made = SweepConfig.model_validate({"name": "kept", "base": base() | {"privacy": {"epsilon": 3}}, "grid": grid})
    save_sweep_folder(home, made)
    return sweep_id(made)


def test_several_unfinished_sweeps_read_each_run_once_and_validate_none_of_other_parameters(home, scanned):
    _, _, ids = finished(home)
    for first in (0, 10, 20):
        unfinished(home, first)
    scanned.clear()
    former_runs._KNOWN.clear()
    assert [done for _, done, _, _ in all_sweeps(home)].count(0) == 3
    assert sorted(scanned) == sorted(f"read {each}" for each in ids)
    all_sweeps(home)
    assert len(scanned) == len(ids), "a later look reads none again"


def test_a_sweep_of_finished_cells_looks_for_none(home, scanned):
    finished(home)
    scanned.clear()
    assert [done for _, done, _, _ in all_sweeps(home)] == [3] and scanned == []


def test_runs_that_came_since_are_seen(home, scanned):
    made = SweepConfig.model_validate({"name": "kept", "base": base() | {"privacy": {"epsilon": 3}}})
    cell = made.cells()[0]
    assert RecordedRuns(home).run(cell) == run_id(cell)
    before = run(home, cell).run
    move_data(home)
    save_sweep_folder(home, made)
    again = load_saved(home, sweep_id(made)).cells()[0]
    assert run_id(again) != before and RecordedRuns(home).run(again) == before
    assert scanned.count(f"read {before}") == 1


def test_a_stopped_sweep_is_held_only_once_its_cells_are_found(home, scanned, monkeypatch):
    """A driver waits for half a minute at most."""
    finished(home)
    name = unfinished(home, 0)
    held, real = [], stale.unless_driven

    @contextmanager
    def holding(*which):
        with real(*which) as mine:
            scanned.clear()
            yield mine
            held.extend(scanned)

    monkeypatch.setattr(stale, "unless_driven", holding)
    former_runs._KNOWN.clear()
    with stale.left_behind(home, name, "sweep") as status:
        assert status == "KILLED"
    assert held == [] and len(former_runs._KNOWN[str(home.runs)]) == 3
