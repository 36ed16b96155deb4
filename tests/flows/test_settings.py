"""Sweeps are shown by their varied settings: a line, a curve, a row and values per setting, means over seeds only."""

from __future__ import annotations

import csv
import io
import json
import statistics
from pathlib import Path

import pytest
from rich.console import Console

from fedcore.experiment.identity import run_id
from fedcore.experiment.result import RunResult
from fedcore.experiment.sweep import SweepConfig
from fedcore.home import Home
from flows.commands.show import show_sweep
from flows.reports.lines import summarise
from flows.reports.plot import MOST_CURVES, _curves, _varied_number
from flows.reports.settings import OWN_HEADS, heads, settings, settings_text, shown
from flows.reports.sweep_outcome import SweepOutcome
from flows.reports.table import table, write_report
from tests.flows.results import made_result

STEPS, ROUNDS, EPSILONS, SEEDS = [1, 4, 16], [10, 40], [2, 8], [0, 1, 2]


def swept(**grid: list) -> SweepConfig:
    base = {"data": {"source": "synthetic"}, "algorithm": {"name": "mbsgd"}, "privacy": {"epsilon": 2}}
    return SweepConfig(name="s", base=base, grid=grid)


def three_keys() -> SweepConfig:
    grid = {"algorithm.step": STEPS, "algorithm.rounds": ROUNDS, "privacy.epsilon": EPSILONS, "seed": SEEDS}
    return swept(**grid)


def error_of(step: float, rounds: int, epsilon: float, seed: int) -> float:
    return 0.2 + 0.01 * step / epsilon + rounds / 1000 + 0.003 * seed**2


def results_of(config: SweepConfig) -> list[RunResult]:
    return [
        made_result(
            run=run_id(cell),
            method=cell.algorithm.name,
            seed=cell.seed,
            epsilon_target=cell.privacy.epsilon,
            epsilon_accounted=cell.privacy.epsilon,
            rounds=cell.algorithm.rounds,
            test_error=error_of(cell.algorithm.step, cell.algorithm.rounds, cell.privacy.epsilon, cell.seed),
        )
        for cell in config.cells()
    ]


def printed(shown: object, width: int = 80) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(shown)
    return console.export_text()


def test_a_line_is_a_mean_over_the_seeds_of_one_setting():
    config = three_keys()
    lines = summarise(results_of(config), settings(config))
    assert len(lines) == len(STEPS) * len(ROUNDS) * len(EPSILONS)
    for line in lines:
        assert set(line.settings) == {"algorithm.step", "algorithm.rounds"}
        step, rounds = line.settings["algorithm.step"], line.settings["algorithm.rounds"]
        errors = [error_of(step, rounds, line.epsilon, seed) for seed in SEEDS]
        assert line.error == pytest.approx(statistics.fmean(errors), rel=1e-12)
        assert line.spread == pytest.approx(statistics.stdev(errors), rel=1e-12)
        assert line.runs == len(SEEDS)
    best = [(line.epsilon, settings_text(line.settings)) for line in lines if line.best]
    assert best == [(2, "rounds 10, step 1"), (8, "rounds 10, step 1")]


def test_the_table_has_a_column_for_each_key_and_marks_the_best_of_each_epsilon():
    config = three_keys()
    text = printed(table(summarise(results_of(config), settings(config)), "s"))
    head = next(row for row in text.splitlines() if "method" in row)
    assert head.split()[:4] == ["method", "epsilon", "rounds", "step"]
    rows = [row.split() for row in text.splitlines() if row.startswith(" mbsgd")]
    assert [row[1:4] for row in rows[:3]] == [["2", "10", "1"], ["2", "40", "1"], ["2", "10", "4"]]
    assert sum("*" in cell for row in rows for cell in row) == len(EPSILONS)
    assert "chosen by the errors shown, which flatters it" in " ".join(text.split())


@pytest.mark.parametrize("width", [40, 50, 60, 70, 80, 120])
def test_narrow_terminals_lose_columns_and_no_digit(width):
    config = three_keys()
    text = printed(table(summarise(results_of(config), settings(config)), "s", width), width)
    rows = [row.split() for row in text.splitlines() if row.startswith(" mbsgd")]
    assert len(rows) == 12 and len({len(row) for row in rows}) == 1  # no row is wrapped
    assert "…" not in text
    for row in rows:
        assert f"{error_of(float(row[3]), int(row[2]), float(row[1]), 1) + 0.003 * 2 / 3:.3f}" in "".join(row)


def test_many_keys_share_one_column_with_each_methods_own():
    base = {"data": {"source": "synthetic"}, "privacy": {"epsilon": 2}}
    variants = [
        {"set": {"algorithm": {"name": name}}, "grid": grid}
        for name, grid in (
            ("mbsgd", {"algorithm.step": [1, 2], "algorithm.average": ["last", "uniform"]}),
            ("fedsgd", {"algorithm.step": [1, 2], "algorithm.rounds": [3, 5]}),
            ("accelerated-mbsgd", {"algorithm.smoothness": [0.5, 1.0]}),
        )
    ]
    config = SweepConfig(name="s", base=base, variants=variants)
    results = [made_result(run=run_id(cell), method=cell.algorithm.name, epsilon_target=2.0) for cell in config.cells()]
    lines = summarise(results, settings(config))
    accelerated = [line for line in lines if line.method == "accelerated-mbsgd"]
    assert [set(line.settings) for line in accelerated] == [{"algorithm.smoothness"}] * 2
    text = printed(table(lines, "s"))
    assert "settings" in text and "average last, step 1" in text and "smoothness 0.5" in text


def test_what_follows_from_the_target_is_no_setting():
    """The hospitals' sweep has other rounds at each epsilon, and epsilon distinguishes its lines already."""
    base = {"data": {"source": "synthetic"}, "algorithm": {"name": "mbsgd"}, "privacy": {"epsilon": 2}}
    variants = [{"set": {"privacy.epsilon": e, "algorithm.rounds": r}} for e, r in ((1, 10), (2, 40))]
    config = SweepConfig(name="s", base=base, variants=variants, grid={"seed": [0, 1]})
    assert set(map(len, settings(config).values())) == {0}


def test_data_are_no_choice_of_a_best_setting():
    config = swept(**{"data.condition": [1, 100], "algorithm.step": [1, 2]})
    results = [
        made_result(run=run_id(cell), test_error=0.1 * cell.algorithm.step + cell.data.condition / 1e3)
        for cell in config.cells()
    ]
    lines = summarise(results, settings(config))
    assert [settings_text(line.settings) for line in lines if line.best] == [
        "step 1, condition 1",
        "step 1, condition 100",
    ]


def test_patience_chooses_among_its_key_which_no_column_is_for():
    base = {"data": {"source": "synthetic"}, "algorithm": {"name": "mbsgd"}, "privacy": {"epsilon": 2}}
    grid = {"algorithm.step": [1, 2], "algorithm.rounds": [20, 40]}
    tracking = {"tracking": {"simulation_metrics": True}}
    config = SweepConfig(name="s", base=base | tracking, grid=grid, patience={"key": "algorithm.step"})
    assert set(map(tuple, settings(config).values())) == {("algorithm.rounds",)}


def test_files_have_each_cell_and_each_setting(tmp_path):
    config, home = three_keys(), Home(tmp_path)
    results = results_of(config)
    (home.sweeps / "s").mkdir(parents=True)
    report = write_report(home, "s", results, settings=settings(config))
    assert report.columns["algorithm.step"][:2] == [1, 1] and "settings" not in report.columns
    with (tmp_path / "sweeps" / "s" / "cells.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(results)
    for row, cell, result in zip(rows, config.cells(), results, strict=True):
        assert (row["run"], float(row["error"])) == (run_id(cell), result.test_error)
        assert float(row["algorithm.step"]) == cell.algorithm.step and int(row["seed"]) == cell.seed
    assert report.plot is not None and report.plot.stat().st_size > 10_000


def test_json_has_the_settings_of_each_cell(capsys):
    config = three_keys()
    results = results_of(config)
    outcome = SweepOutcome("s", len(results), results, [], "", None, settings=settings(config))
    show_sweep(outcome, as_json=True)
    values = json.loads(capsys.readouterr().out)
    assert values["results"][0]["settings"] == {"algorithm.rounds": 10, "algorithm.step": 1.0}
    assert "settings" not in values


def test_curves_are_settings_and_beyond_eight_the_best_of_each_method():
    few = three_keys()
    lines = summarise(results_of(few), settings(few))
    curves = _curves(lines, None)
    assert [curve.places for curve in curves] == [EPSILONS] * 6 and not any(curve.faint for curve in curves)
    many = swept(**{"algorithm.step": [1, 2, 3, 4, 5, 6, 7, 8, 9], "privacy.epsilon": EPSILONS})
    lines = summarise(results_of(many), settings(many))
    curves = _curves(lines, None)
    assert sum(curve.faint for curve in curves) == 9 > MOST_CURVES
    assert curves[-1].label == "mbsgd, best of 9 settings"
    assert [line.settings["algorithm.step"] for line in curves[-1].lines] == [1, 1]


def test_at_one_epsilon_the_axis_is_the_number_with_the_most_values():
    config = swept(**{"algorithm.step": STEPS, "algorithm.rounds": ROUNDS, "algorithm.average": ["last", "uniform"]})
    lines = summarise(results_of(config), settings(config))
    assert _varied_number(lines) == "algorithm.step"
    curves = _curves(lines, "algorithm.step")
    assert curves[0].label == "mbsgd, average last, rounds 10" and len(curves) == 4
    assert all(curve.places == STEPS for curve in curves)


def test_a_sweep_whose_cells_were_run_by_another_is_saved_too(tmp_path: Path, monkeypatch):
    from flows import launch

    home, config = Home(tmp_path), three_keys()
    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path))
    monkeypatch.setattr(launch, "is_complete", lambda *_: True)
    monkeypatch.setattr(launch, "finished_results", lambda *_: results_of(config))
    monkeypatch.setattr(launch, "check", lambda *_: None)
    monkeypatch.setattr(launch, "sweep_outcome", lambda home, config, results, _: results)
    launch.launch_sweep(config, None)
    (folder,) = home.sweeps.iterdir()
    assert {path.name for path in folder.iterdir()} == {"sweep.json", "report.json", "cells.csv", "plot.png"}


def test_methods_with_other_keys_at_one_epsilon_are_drawn_at_that_epsilon(tmp_path):
    base = {"data": {"source": "synthetic"}, "privacy": {"epsilon": 2}}
    variants = [
        {"set": {"algorithm": {"name": "mbsgd"}}, "grid": {"algorithm.step": [1, 2]}},
        {"set": {"algorithm": {"name": "accelerated-mbsgd"}}, "grid": {"algorithm.smoothness": [0.5, 1.0]}},
        {"set": {"algorithm": {"name": "fedsgd"}}, "grid": {"seed": [0, 1]}},
    ]
    config, home = SweepConfig(name="s", base=base, variants=variants), Home(tmp_path)
    results = [made_result(run=run_id(cell), method=cell.algorithm.name, epsilon_target=2.0) for cell in config.cells()]
    (home.sweeps / "s").mkdir(parents=True)
    report = write_report(home, "s", results, settings=settings(config))
    assert report.plot is not None and report.plot.stat().st_size > 10_000
    assert {at for curve in _curves(report.lines, _varied_number(report.lines)) for at in curve.places} == {2.0}


def test_values_that_differ_beyond_six_digits_are_shown_as_two():
    assert [shown(value) for value in (0.1234567, 0.12345678, 0.5, 20.0)] == ["0.1234567", "0.12345678", "0.5", "20"]


def test_a_varied_key_takes_no_head_of_the_table():
    """Epsilon of the held-out evaluation would stand in the column of the run's target."""
    assert heads(["evaluation.epsilon", "algorithm.rounds", "algorithm.step_size", "some.by_silo"]) == {
        "evaluation.epsilon": "evaluation.epsilon",
        "algorithm.rounds": "rounds",
        "algorithm.step_size": "step size",
        "some.by_silo": "some.by silo",
    }
    plain = {column.header for column in table(summarise([made_result()]), "t", width=200).columns}
    assert plain - {"rounds", "test error"} <= OWN_HEADS
