"""Files of sweeps: cells, overrides of all cells, and refusals."""

import re
from pathlib import Path

import pytest

from fedcore.algorithms import ALGORITHMS
from fedcore.configfile.reading import lists
from fedcore.errors import InputError
from fedcore.experiment.identity import run_id
from fedcore.experiment.sweep import load_sweep
from tests.fedcore.refusal import refusal

CONF = Path(__file__).parents[3] / "conf"

SWEEP = """
name: swept
base: mine.yaml
grid: {privacy.epsilon: [1, 2], seed: [0, 1, 2]}
variants:
  - set: {algorithm.step: 1}
  - set: {algorithm: {name: mbsgd, rounds: 7}}
  - set: {algorithm: {name: mbsgd, rounds: 7}, privacy: {trust: none, epsilon: null}}
    grid: {seed: [4, 5]}
"""


@pytest.fixture
def sweep(file):
    path = file.parent / "sweep.yaml"
    path.write_text(SWEEP)
    return path


def test_cells_are_variants_times_grid_in_order(sweep):
    cells = load_sweep(sweep).cells(str(sweep))
    seen = [(c.algorithm.name, c.privacy.epsilon, c.seed) for c in cells]
    grid = [(epsilon, seed) for epsilon in (1, 2) for seed in (0, 1, 2)]
    wanted = [("localized-mbsgd", *point) for point in grid] + [("mbsgd", *point) for point in grid]
    assert seen == [*wanted, ("mbsgd", None, 4), ("mbsgd", None, 5)]
    assert all(c.name == "swept" for c in cells)
    assert (cells[0].algorithm.step, cells[0].algorithm.rounds, cells[0].algorithm.lam) == (1, (5, 3), 0.1)
    assert cells[6].algorithm == ALGORITHMS["mbsgd"](rounds=7)
    assert cells[-1].privacy.trust == "none"
    assert len({run_id(c) for c in cells}) == 14


def test_equal_cells_are_one(sweep):
    sweep.write_text("name: s\nbase: mine.yaml\ngrid: {seed: [1, 1]}\nvariants: [{}, {}]")
    assert [c.seed for c in load_sweep(sweep).cells()] == [1]


def test_overrides_of_a_sweep_reach_every_cell(sweep):
    cells = load_sweep(sweep, ["model.diameter=3", "name=renamed"]).cells()
    assert len(cells) == 14
    assert {(c.model.diameter, c.name) for c in cells} == {(3, "renamed")}


def test_overrides_reach_sections_that_variants_and_grids_replace(file):
    path = file.parent / "sections.yaml"
    path.write_text("""
name: swept
base: mine.yaml
variants:
  - set: {algorithm: {name: mbsgd, rounds: 7}}
    grid: {data: [{source: synthetic, silos: 4}, {source: synthetic, silos: 5}]}
  - set: {algorithm.name: one-pass-mbsgd, data.source: synthetic, privacy: {trust: none, epsilon: null}}
    grid: {seed: [0, 1]}
""")
    cells = load_sweep(path, ["algorithm.step=9", "data.test_records=77", "privacy.delta=1e-4"]).cells()
    assert [c.algorithm.step for c in cells] == [9] * 4
    assert [(c.data.silos, c.data.test_records) for c in cells[:2]] == [(4, 77), (5, 77)]
    assert [c.data.test_records for c in cells[2:]] == [77, 77]
    assert [c.privacy.delta for c in cells] == [1e-4] * 4
    # null: that variant goes without it
    assert [c.privacy.epsilon for c in load_sweep(path, ["privacy.epsilon=3"]).cells()] == [3, 3, None, None]
    shared = path.read_text().replace("grid: {data", "grid: &shared {data")
    path.write_text(shared + "  - {set: {seed: 5}, grid: *shared}\n")
    assert [getattr(c.data, "test_records", 0) for c in load_sweep(path, ["data.test_records=77"]).cells()] == [77] * 6
    for override, expected in {
        "algorithm.rounds=3": "algorithm.rounds = 7 is set by the sweep itself",
        "algorithm.name=scaffold": "algorithm.name = 'mbsgd' is set by the sweep itself",
        "data.silos=3": "data.silos = 4 is set by the sweep itself",
        "seed=3": "seed is in the sweep's grid; override it there: grid.seed=[...]",
    }.items():
        assert expected in refusal(load_sweep, path, [override])


@pytest.mark.parametrize(
    "old, new, parts",
    [
        ("seed: [0, 1, 2]", "sede: [0]", ["variant 1", "sede", "did you mean seed?"]),
        ("[1, 2]", "[1, -2]", ["variant 1 (privacy.epsilon=-2, seed=0)", "privacy.epsilon = -2", "greater than 0"]),
        ("[1, 2]", "1", ["grid.privacy.epsilon", "list"]),
        ("grid: {privacy", "gird: {privacy", ["gird", "did you mean grid?"]),
        ("name: swept", "nam: swept", ["nam", "did you mean name?"]),
        ("name: mbsgd, rounds: 7}}", "name: mbsgd, lam: 7}}", ["variant 2", "algorithm.lam", "known key"]),
        ("base: mine.yaml", "base: 3", ["base must be"]),
    ],
)
def test_a_wrong_sweep_is_told(sweep, old, new, parts):
    assert old in SWEEP
    sweep.write_text(SWEEP.replace(old, new, 1))
    sentence = refusal(lambda: load_sweep(sweep).cells(str(sweep)))
    assert all(part in sentence for part in (str(sweep), *parts)), sentence


def test_a_grid_that_no_variant_uses_is_told(sweep):
    sweep.write_text(
        SWEEP.replace("algorithm.step: 1}", "algorithm.step: 1}\n    grid: {seed: [1]}").replace(
            "7}}\n  -", "7}}\n    grid: {seed: [2]}\n  -"
        )
    )
    assert "no variant uses the sweep's grid (privacy.epsilon, seed): each has one of its own" in refusal(
        load_sweep, sweep
    )


def test_a_base_that_is_not_there_is_told(sweep):
    sweep.write_text("name: s\nbase: none.yaml")
    assert "none.yaml does not exist" in refusal(load_sweep, sweep)


@pytest.mark.parametrize("path", sorted(CONF.glob("sweep/*.yaml")), ids=lambda path: path.name)
def test_sweeps_of_conf_can_be_loaded(path):
    cells = load_sweep(path).cells()
    assert len({run_id(cell) for cell in cells}) == len(cells) > 1


def experiment_file(tmp_path):
    path = tmp_path / "one.yaml"
    path.write_text("name: one\nprivacy: {epsilon: 2}\nalgorithm: {name: mbsgd, rounds: 5}\n")
    return path


def test_an_experiment_is_swept_over_values_of_the_command_line(tmp_path):
    overrides = ["algorithm.step=1,0.5", "seed=0,1,2", "privacy.delta=1e-6"]
    sweep = load_sweep(experiment_file(tmp_path), overrides)
    assert sweep.name == "one"
    cells = sweep.cells()
    assert [(c.algorithm.step, c.seed) for c in cells] == [(s, seed) for s in (1, 0.5) for seed in (0, 1, 2)]
    assert {(c.algorithm.rounds, c.privacy.delta) for c in cells} == {(5, 1e-6)}


def test_values_of_the_command_line_come_in_place_of_the_grids(sweep):
    before = load_sweep(sweep).cells()
    cells = load_sweep(sweep, ["seed=7,8,9"]).cells()
    assert {c.seed for c in cells} == {7, 8, 9}
    assert {c.privacy.epsilon for c in cells} == {c.privacy.epsilon for c in before}


@pytest.mark.parametrize("value", ["[1,2]", '"1,2"', "{a: 1, b: 2}"])
def test_what_is_bracketed_or_quoted_is_one_value(value):
    assert lists([f"algorithm.rounds={value}", "seed=3"]) == ({}, [f"algorithm.rounds={value}", "seed=3"])


def test_an_experiment_without_anything_to_vary_is_no_sweep(tmp_path):
    with pytest.raises(InputError, match=r"not a sweep; use `fedcore run .*`, or say what to vary: .* seed=0,1,2"):
        load_sweep(experiment_file(tmp_path), ["seed=1"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm.name=mbsdg", "algorithm.name = 'mbsdg' is not known; did you mean mbsgd?"),
        ("cluster.backend=in-proces", "cluster.backend = 'in-proces' is not known; did you mean in-process?"),
        ("cluster.backend=xyz", "cluster.backend = 'xyz' is not known; there are 'dask', 'in-process' or 'federation'"),
        ("seed=1,x", "seed = 'x': it should be a whole number"),
    ],
)
def test_a_value_that_is_close_to_a_known_one_is_guessed(tmp_path, override, message):
    with pytest.raises(InputError, match=re.escape(message)):
        load_sweep(experiment_file(tmp_path), ["repetition=0,1", override]).cells("one.yaml")
