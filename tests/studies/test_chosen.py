"""Settings chosen on simulated silos: equally many for each method, least mean error at each place, no silo's query."""

from __future__ import annotations

import itertools
import json
import statistics

import pytest

from fedcore.errors import InputError
from fedcore.experiment.identity import run_id
from fedcore.experiment.sweep import SweepConfig
from studies.figures.chosen import (
    ChosenConfig,
    choices,
    choices_json,
    choices_table,
    first_choices,
    to_try,
    with_choices,
)
from tests.flows.results import made_result

STEPS, CLIPS, EPSILONS, SEEDS = [1.0, 4.0, 16.0], [0.25, 1.0], [1, 4], (1000, 1001, 1002)
ON = ChosenConfig(data="digits.yaml", simulated="simulated.yaml", seeds=SEEDS)
GRID = {"privacy.epsilon": EPSILONS, "seed": [0, 1]}


def methods(source: str = "synthetic", **grid: list) -> SweepConfig:
    return SweepConfig.model_validate(
        {
            "name": source,
            "base": {"data": {"source": source}, "privacy": {"delta": 1e-6}},
            "variants": [
                {"set": {"algorithm": {"name": "mbsgd"}}, "grid": {"model.clip": CLIPS, "algorithm.step": STEPS}},
                {
                    "set": {"algorithm": {"name": "one-pass-mbsgd"}},
                    "grid": grid or {"algorithm.rounds": [2, 4], "algorithm.step": STEPS},
                },
            ],
        }
    )


def error_of(cell) -> float:
    """Large steps are best at epsilon 4, small ones at 1, each seed with a gap of its own."""
    best = 16.0 if cell.privacy.epsilon == 4 else 1.0
    return 0.1 + 0.01 * abs(cell.algorithm.step - best) + 0.001 * (cell.seed - 1000) + 0.0005 * cell.algorithm.rounds


def tried() -> list:
    cells = to_try(methods(), GRID, SEEDS).cells()
    return [made_result(run=run_id(cell), test_error=error_of(cell)) for cell in cells]


def test_all_settings_are_tried_at_all_places_on_the_simulated_silos_alone():
    cells = to_try(methods(), GRID, SEEDS).cells()
    assert len({run_id(cell) for cell in cells}) == len(cells) == 2 * 6 * 2 * 3
    assert {cell.seed for cell in cells} == set(SEEDS)


def test_the_choice_is_that_of_a_naive_search():
    made = choices(methods(), GRID, ON, tried())
    assert [(each.method, each.place["privacy.epsilon"]) for each in made] == list(
        itertools.product(("mbsgd", "one-pass-mbsgd"), EPSILONS)
    )
    for each in made:
        found = {}
        for cell in to_try(methods(), GRID, SEEDS).cells():
            if (cell.algorithm.name, cell.privacy.epsilon) == (each.method, each.place["privacy.epsilon"]):
                key = (cell.model.clip, cell.algorithm.step, cell.algorithm.rounds)
                found.setdefault(key, []).append(error_of(cell))
        means = {key: statistics.fmean(errors) for key, errors in found.items()}
        (clip, step, rounds) = min(means, key=means.get)
        assert each.error == pytest.approx(means[clip, step, rounds]) and each.tried == 6
        assert each.settings["algorithm.step"] == step
        assert each.settings.get("algorithm.rounds", rounds) == rounds
        assert each.uncertainty == pytest.approx(statistics.stdev(found[clip, step, rounds]) / 3**0.5)
    assert [each.settings["algorithm.step"] for each in made] == [1.0, 16.0, 1.0, 16.0]


def test_the_figure_runs_each_method_with_what_was_chosen_and_nothing_else():
    target = methods("digits")
    made = choices(methods(), GRID, ON, tried())
    cells = with_choices(target, GRID, made).cells()
    assert len(cells) == 2 * 2 * 2 and {cell.data.source for cell in cells} == {"digits"}
    for cell in cells:
        assert cell.seed in (0, 1) and cell.algorithm.step == (16.0 if cell.privacy.epsilon == 4 else 1.0)
        assert cell.privacy.delta == 1e-6
    assert len(with_choices(target, GRID, first_choices(target, GRID)).cells()) == len(cells)


def test_unequal_numbers_of_settings_are_refused():
    with pytest.raises(InputError, match=r"different numbers of settings .* mbsgd 6, one-pass-mbsgd 2"):
        to_try(methods(**{"algorithm.rounds": [2, 4]}), GRID, SEEDS)


def test_a_cell_without_an_error_is_no_choice():
    results = tried()
    with pytest.raises(InputError, match="errors on public test data"):
        choices(methods(), GRID, ON, results[1:])


def test_settings_with_a_failed_run_are_not_chosen():
    results = tried()
    best = choices(methods(), GRID, ON, results)[0]
    cells = to_try(methods(), GRID, SEEDS).cells()
    failed = next(
        run_id(cell)
        for cell in cells
        if cell.algorithm.name == "mbsgd"
        and cell.privacy.epsilon == 1
        and cell.algorithm.step == 1.0
        and cell.model.clip == best.settings["model.clip"]
    )
    left = [result for result in results if result.run != failed]
    again = choices(methods(), GRID, ON, left, [failed])[0]
    assert again.settings == {"model.clip": 1.0, "algorithm.step": 1.0} != best.settings and again.tried == 6
    everything = [run_id(cell) for cell in cells if cell.algorithm.name == "mbsgd" and cell.privacy.epsilon == 1]
    with pytest.raises(InputError, match="all settings of mbsgd failed"):
        choices(methods(), GRID, ON, [result for result in results if result.run not in everything], everything)


def test_the_mean_loss_may_choose_in_place_of_the_error():
    by_loss = ON.model_copy(update={"by": "train_loss"})
    with pytest.raises(InputError, match="simulation_metrics"):
        choices(methods(), GRID, by_loss, tried())
    results = [
        result.model_copy(update={"simulation": {"train_loss": 1.0 - (result.test_error or 0.0)}}) for result in tried()
    ]
    steps = [each.settings["algorithm.step"] for each in choices(methods(), GRID, by_loss, results)]
    assert steps == [16.0, 1.0, 16.0, 1.0]  # the worst by error


def test_the_choice_is_told_with_how_many_were_tried():
    made = choices(methods(), GRID, ON, tried())
    lines = choices_table(made).splitlines()
    assert lines[0] == "| method | epsilon | settings | simulated error | of |"
    assert "| mbsgd | 1 | clip 0.25, step 1 | " in lines[2] and lines[2].endswith(" | 6 |")
    assert json.loads(json.dumps(choices_json(made)))[0]["privacy.epsilon"] == 1
