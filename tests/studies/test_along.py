"""The error along runs: means over runs at rounds that all runs evaluated, and sums of numbers sent and gradients."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import run_id
from fedcore.home import Home
from fedcore.optim.sgd import SgdState
from flows.runs import store_path
from studies.figures.along import cost_curves, draw_cost_curves
from tasks.run_store import MetricRow, RunStore
from tests.flows.results import made_result

W = np.zeros(3)


def cell(method: str, seed: int, epsilon: float = 1.0) -> ExperimentConfig:
    return ExperimentConfig.model_validate(
        {"data": {"source": "synthetic"}, "privacy": {"epsilon": epsilon}, "algorithm": {"name": method}, "seed": seed}
    )


def ran(home: Home, config: ExperimentConfig, phases: list[list[tuple[float, float | None]]]):
    """A finished run of phases of rounds, each with gradient evaluations and error; None: not evaluated."""
    path = store_path(home, run_id(config))
    path.parent.mkdir(parents=True)
    store, sent = RunStore(path), 0.0
    for phase, rounds in enumerate(phases, 1):
        for round, (gradients, error) in enumerate(rounds, 1):
            sent += 100.0
            values = {"communication/floats_up": sent, "gradient_evaluations": gradients}
            values |= {} if error is None else {"test/error": error}
            store.save(SgdState(phase, round + 1, W, W, W), None, MetricRow(phase, round, values))
    store.close()
    return made_result(run=run_id(config), method=config.algorithm.name, seed=config.seed, seconds=config.seed + 1.0)


@pytest.fixture
def made(tmp_path: Path):
    home = Home(tmp_path)
    cells = [cell("mbsgd", 0), cell("mbsgd", 1), cell("mbsgd", 0, 4.0), cell("localized-mbsgd", 0)]
    results = [
        ran(home, cells[0], [[(10, 0.5), (10, 0.4), (10, 0.3)]]),
        ran(home, cells[1], [[(10, 0.7), (10, None), (10, 0.1)]]),
        ran(home, cells[2], [[(10, 0.0)]]),
        ran(home, cells[3], [[(8, 0.6), (8, 0.5)], [(4, 0.4)]]),
    ]
    return home, cells, results


def test_a_way_is_the_mean_of_the_runs_at_one_epsilon(made):
    home, cells, results = made
    first, second = cost_curves(home, "test error", 1.0, cells, results)
    assert (first.method, first.rounds, first.runs) == ("mbsgd", (1.0, 3.0), 2)
    assert first.errors == pytest.approx((0.6, 0.2)) and first.gradients == (10.0, 30.0)
    assert first.floats == (100.0, 300.0) and first.seconds == 1.5
    # Of phases the rounds go on, and so do numbers and evaluations.
    assert (second.method, second.rounds, second.gradients) == ("localized-mbsgd", (1.0, 2.0, 3.0), (8.0, 16.0, 20.0))


def test_it_is_drawn_with_what_whole_runs_took(made, tmp_path):
    home, cells, results = made
    (tmp_path / "drawn").mkdir()
    text = draw_cost_curves(
        tmp_path / "drawn", "test error", 1.0, "Title", cost_curves(home, "test error", 1.0, cells, results)
    )
    assert "| mbsgd | 3 | 300 | 30 | 1.50 | 0.2 |" in text
    assert (tmp_path / "drawn" / "along-1.png").stat().st_size > 10_000
    assert json.loads((tmp_path / "drawn" / "along-1.json").read_text())[1]["errors"] == [0.6, 0.5, 0.4]
