"""Rows of the table behind advice: for each epsilon of a figure, every method's error and settings."""

from __future__ import annotations

import pytest

from fedcore.advice.table import Facts, Row
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import run_id
from fedcore.home import Home
from fedcore.optim.sgd import SgdState
from flows.runs import store_path
from studies.figures.chosen import Choice
from studies.figures.comparisons import comparisons, rankings
from studies.figures.points import PointsConfig, points
from studies.figures.rows import rows_of
from tasks.run_store import MetricRow, RunStore
from tests.flows.results import made_result

ERRORS = {("mbsgd", 1.0): 0.30, ("mbsgd", 4.0): 0.20, ("scaffold", 1.0): 0.302, ("scaffold", 4.0): 0.10}
SENT = {"mbsgd": 100.0, "scaffold": 300.0}


def cell(method: str, epsilon: float, seed: int) -> ExperimentConfig:
    return ExperimentConfig.model_validate(
        {
            "data": {"source": "synthetic", "silos": 5, "records": 60, "features": 4},
            "algorithm": {"name": method},
            "privacy": {"epsilon": epsilon, "delta": 1e-4},
            "seed": seed,
        }
    )


@pytest.fixture
def made(tmp_path) -> list[Row]:
    home, cells, results = Home(tmp_path), [], []
    for (method, epsilon), error in ERRORS.items():
        for seed in range(4):
            config = cell(method, epsilon, seed)
            path = store_path(home, run_id(config))
            path.parent.mkdir(parents=True)
            store = RunStore(path)
            for round in (1, 2):
                values = {"communication/floats_up": SENT[method] / 2 * round}
                store.save(SgdState(1, round + 1, [0.0], [0.0], [0.0]), None, MetricRow(1, round, values))
            store.close()
            cells.append(config)
            results.append(
                made_result(
                    run=run_id(config),
                    method=method,
                    seed=seed,
                    epsilon_target=epsilon,
                    epsilon_accounted=epsilon,
                    test_error=error + 0.001 * seed * (1 if method == "mbsgd" else -1),
                    rounds=2 if seed else 3,
                )
            )
    drawn = points(cells, results, PointsConfig(), home)
    chosen = [
        Choice(
            number,
            method,
            {"privacy.epsilon": epsilon},
            {"algorithm.step": epsilon},
            0.1,
            0.01,
            12,
            {"algorithm": {"name": method}},
        )
        for number, (method, epsilon) in enumerate(ERRORS)
    ]
    return rows_of(home, "made", cells, results, drawn, rankings(drawn, comparisons(drawn)), chosen)


def test_a_row_says_what_came_out_at_its_epsilon_and_with_what(made):
    at_1, at_4 = made
    assert at_4.errors == pytest.approx({"mbsgd": 0.2015, "scaffold": 0.0985})
    assert at_4.tied == ("scaffold",) and set(at_1.tied) == {"mbsgd", "scaffold"}
    assert at_1.settings == {name: {"algorithm": {"name": name, "step": 1.0}} for name in ("mbsgd", "scaffold")}
    assert at_1.rounds == {"mbsgd": 3, "scaffold": 3} and at_1.floats == SENT


def test_its_facts_are_those_of_the_runs_and_it_comes_back_from_json(made):
    for row, epsilon in zip(made, (1.0, 4.0), strict=True):
        assert row.facts == Facts.of(cell("mbsgd", epsilon, 0))
        assert (row.facts.silos, row.facts.records, row.facts.weights) == (5, 60, 5) and row.facts.convex
        assert Row.model_validate_json(row.model_dump_json()) == row
