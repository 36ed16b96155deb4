"""A sweep's totals are the charges of its runs, even if their files change later."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from fedcore.errors import InputError
from fedcore.experiment.identity import run_id
from fedcore.experiment.sweep import SweepConfig
from flows.commands.show import report
from flows.launch import save_sweep_folder
from flows.reports.silo_totals import totals_sentence
from flows.runs import statistics_path, store_path
from flows.sweep_budget import sweep_totals
from flows.sweep_files import all_totals, totals_or_reason
from tasks.run_store import RunStore
from tests.flows import test_former_sweeps
from tests.flows.driving import run
from tests.flows.test_former_sweeps import base, finished, move_data, other_data, stop
from tests.gaussian_curve import epsilon_by_hand, mu_by_hand

home = test_former_sweeps.home


def exchange(home, rows: int) -> None:
    """Replaces the records in the files of both silos, in place."""
    for seed, name in enumerate(("north", "south")):
        X = np.random.default_rng(20 + seed).uniform(-1, 1, size=(rows, 2)).round(3)
        text = "a,b,y\n" + "".join(f"{a},{b},{int(a > b)}\n" for a, b in X)
        (home.root.parent / "data" / f"{name}.csv").write_text(text)


@pytest.mark.parametrize("rows", [30, 80])
def test_of_finished_cells_it_stays_what_it_was_when_files_change(home, rows):
    made, _, _ = finished(home)
    before = all_totals(home, made, [])
    exchange(home, rows)
    assert all_totals(home, made, []) == before and {total.n for total in before} == {40}


def test_totals_do_not_need_files_that_are_gone(home, capsys):
    made, name, _ = finished(home)
    statement = totals_sentence(all_totals(home, made, []))
    for file in (home.root.parent / "data").iterdir():
        file.unlink()
    report(name, as_json=True)
    assert json.loads(capsys.readouterr().out)["statement"] == statement


def test_a_former_sweep_costs_what_it_did_once_other_data_are_in_their_place(home, capsys):
    made, name, _ = finished(home)
    statement = totals_sentence(all_totals(home, made, []))
    other_data(home)
    report(name, as_json=True)
    assert json.loads(capsys.readouterr().out)["statement"] == statement


def test_cells_of_two_sizes_add_up_at_the_smaller_delta(home):
    made = test_former_sweeps.sweep()
    first, second, _ = made.cells()  # epsilon 1 and 2
    run(home, first)
    exchange(home, 80)
    run(home, second)
    mu = math.hypot(mu_by_hand(1, 1 / 40**2), mu_by_hand(2, 1 / 80**2))
    for total in sweep_totals(home, (first, second)):
        assert total.delta == 1 / 80**2 and total.cells == 2
        assert total.epsilon == pytest.approx(epsilon_by_hand(mu, 1 / 80**2), rel=1e-6)


def test_a_stopped_run_that_was_begun_with_other_sizes_makes_the_total_unknown(home, capsys):
    made, name, ids = finished(home)
    stop(home, ids[1])
    before = totals_or_reason(home, made, [])
    assert len(before[0]) == 2
    exchange(home, 80)
    totals, statement = totals_or_reason(home, made, [])
    assert totals == [] and f"is unknown here: run {ids[1]} was charged by another plan" in statement
    report(name, as_json=True)
    values = json.loads(capsys.readouterr().out)
    assert values["silos"] == [] and values["statement"] == statement and len(values["results"]) == 2
    exchange(home, 40)
    assert totals_or_reason(home, made, []) == before


def test_a_checkpoint_of_another_plan_is_none_of_this_one_s_costs(home):
    made, _, ids = finished(home)
    store = RunStore(store_path(home, ids[0]))
    store.set_meta(plan="0" * 64)
    store.close()
    with pytest.raises(InputError, match=f"run {ids[0]} was charged by another plan"):
        all_totals(home, made, [])


def released(home) -> tuple[SweepConfig, str]:
    values = base()
    values["data"]["features"] = {"a": {"range": [-1, 1]}, "b": {"range": [-1, 1]}}
    values["data"]["scaling"] = {"constants": "released", "epsilon": 3}
    made = SweepConfig.model_validate({"name": "kept", "base": values, "grid": {"privacy.epsilon": [4, 5]}})
    save_sweep_folder(home, made)
    (result, _) = (run(home, cell) for cell in made.cells())
    assert result.statistics is not None and statistics_path(home, result.statistics).exists()
    return made, result.statistics


@pytest.mark.parametrize("change", [lambda home: exchange(home, 80), move_data, other_data])
def test_a_release_that_cells_share_is_counted_as_it_was(home, change, capsys):
    made, _ = released(home)
    statement = totals_sentence(all_totals(home, made, []))
    assert "1 release(s) of moments" in statement
    name = next(path.name for path in home.sweeps.iterdir())
    change(home)
    report(name, as_json=True)
    assert json.loads(capsys.readouterr().out)["statement"] == statement


def test_a_release_before_a_stopped_run_of_a_former_id_is_counted(home, capsys):
    """The release's id is of other paths too, and no result names it."""
    made, _ = released(home)
    for cell in made.cells():
        stop(home, run_id(cell))
    before = all_totals(home, made, [])
    name = next(path.name for path in home.sweeps.iterdir())
    move_data(home)
    from flows.sweep_files import load_saved, recorded_runs

    again = load_saved(home, name)
    after = all_totals(home, again, [], recorded_runs(home, name, again))
    assert [total.statistics for total in after] == [1, 1]
    assert all(one.epsilon >= two.epsilon for one, two in zip(after, before, strict=True))
