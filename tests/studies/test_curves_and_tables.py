"""Published tables and curves over rounds, made anew from results and stored metrics."""

from __future__ import annotations

import json
import math
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize
from scipy.special import log_softmax

from fedcore.data.records import Records
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.experiment.identity import run_id
from fedcore.experiment.result import RunResult
from fedcore.home import Home
from fedcore.optim.sgd import SgdState
from flows.runs import store_path
from studies.figures.curves import CurvesConfig, curves, label_of
from studies.figures.drawn_curves import differences, draw_curves
from studies.figures.optimum import least_training_loss
from studies.figures.paper_table import TableConfig, draw_table, table_cells, value_at
from studies.figures.trials import half_width
from tasks.run_store import MetricRow, RunStore
from tests.flows.results import made_result

TABLE = TableConfig(
    rows="privacy.noise_multiplier",
    columns="algorithm.local_steps",
    printed_columns=(1, 5),
    published={"10": (50.0, None), "20": (40.0, 30.0)},
    published_rounds={"10": (7, 8)},
)


PRINTED = {"published_panels": ((20.0,), (10.0,)), "published": {"DP-fedavg": (59.0, 61.0)}}


def experiment(**changes) -> ExperimentConfig:
    values = {
        "data": {"source": "synthetic", "silos": 3, "records": 40, "features": 2, "classes": 3, "test_records": 30},
        "model": {"loss": {"name": "softmax"}, "clip": 1.0, "diameter": 100},
        "privacy": {"noise_multiplier": 10, "delta": 1e-5},
        "algorithm": {"name": "fedavg", "rounds": 4, "local_steps": 2},
    }
    return ExperimentConfig.model_validate(values | changes)


def cell(noise: float, steps: int, repetition: int = 0) -> ExperimentConfig:
    return experiment(
        privacy={"noise_multiplier": noise, "delta": 1e-5},
        repetition=repetition,
        algorithm={"name": "fedavg", "rounds": 4, "local_steps": steps},
    )


def result(error: float | None, rounds: int = 7, epsilon: float = 2.0, drawn: float | None = 0.5) -> RunResult:
    return made_result(test_error_tail=error, rounds=rounds, epsilon_accounted=epsilon, epsilon_honest_sampling=drawn)


def test_a_table_has_means_over_runs_beside_what_was_printed(tmp_path):
    made = [
        (cell(10, 1), result(0.5)),
        (cell(10, 1, 1), result(0.3)),
        (cell(10, 5), result(0.2, rounds=9)),
        (cell(20, 1), result(0.75, epsilon=1.0, drawn=None)),
    ]
    found = table_cells(TABLE, [config for config, _ in made], [value for _, value in made])
    assert [(one.row, one.column, one.rounds, one.published, one.published_rounds) for one in found] == [
        (10.0, 1, 7, 50.0, 7),
        (10.0, 5, 9, None, 8),
        (20.0, 1, 7, 40.0, None),
    ]
    # By hand: 50 and 70 percent.
    assert (found[0].mean, found[0].deviation) == pytest.approx((60.0, 10 * 2**0.5))
    draw_table(tmp_path / "place", TABLE, found)
    text = (tmp_path / "place" / "table.md").read_text()
    assert "| 10.0 | 60.00 ± 14.14 (50) | 80.00 |" in text
    assert "| 20.0 | 25.00 (40) | - |" in text
    assert "| 10.0 | 7 (7) | 9 (8) |" in text
    assert "| 10.0 | 2, 0.5 | 2, 0.5 |" in text and "| 20.0 | 1 | - |" in text
    assert json.loads((tmp_path / "place" / "table.json").read_text())["cells"][0]["mean"] == pytest.approx(60.0)
    # What was published stands beside its own column, whatever columns were run.
    others = [(cell(20, 7), result(0.1)), (cell(20, 5), result(0.1))]
    found = table_cells(TABLE, [config for config, _ in others], [value for _, value in others])
    assert [one.published for one in found] == [None, 30.0]


def test_a_table_of_runs_without_accuracy_or_of_an_unknown_key_is_refused():
    with pytest.raises(InputError, match="needs public test data of several classes"):
        table_cells(TABLE, [cell(10, 1)], [result(None)])
    with pytest.raises(InputError, match=r"an experiment has no key algorithm\.warmth"):
        table_cells(TableConfig(rows="algorithm.warmth", columns="seed"), [cell(10, 1)], [result(0.1)])


def test_a_key_that_no_dump_has_at_its_default_has_its_value_all_the_same():
    data = {"source": "synthetic", "silos": 2, "records": 30, "features": 3, "classes": 3}
    found = [value_at(experiment(data=data | more), "data.condition") for more in ({}, {"condition": 100})]
    assert found == [1.0, 100.0]


def test_labels_tell_private_and_warm_runs_apart():
    assert label_of(experiment()) == "DP-fedavg"
    assert label_of(experiment(algorithm={"name": "scaffold", "warm": True})) == "DP-scaffold-warm"
    assert label_of(experiment(privacy={"trust": "none"}, algorithm={"name": "fedsgd"})) == "fedsgd"


def stored(home: Home, config: ExperimentConfig, rows: list[dict[str, float]]) -> RunResult:
    with closing(RunStore(store_path(home, run_id(config)))) as store:
        for at, values in enumerate(rows, 1):
            state = SgdState.start(np.zeros(1))
            store.save(state, None, MetricRow(1, at, values), [], None)
    return made_result(run=run_id(config))


def test_curves_are_means_over_runs_of_stored_metrics(tmp_path):
    home = Home(tmp_path)
    first, second = cell(10, 1), cell(10, 1, repetition=1)
    results = [
        stored(home, first, [{"test/error": 0.9}, {}, {"test/error": 0.5}]),
        stored(home, second, [{"test/error": 0.7}, {"test/error": 0.6}, {"test/error": 0.3}]),
    ]
    figure = CurvesConfig(metric="accuracy", panels=("privacy.noise_multiplier",), **PRINTED)
    (curve,) = curves(home, figure, [first, second], results)
    assert (curve.label, curve.panel, curve.rounds, curve.runs) == ("DP-fedavg", (10.0,), (1, 3), 2)
    assert curve.mean == pytest.approx((20.0, 60.0))
    assert curve.deviation == pytest.approx((10 * 2**0.5, 10 * 2**0.5))
    text = draw_curves(tmp_path / "place", figure, "a title", [curve])
    assert "at the end (published) |" in text and "| DP-fedavg | 60.00 ± 14.14 (61) | 2 |" in text
    assert (tmp_path / "place" / "plot-accuracy.png").read_bytes()[:4] == b"\x89PNG"


def test_curves_by_floats_are_at_what_silos_had_sent_on_average(tmp_path):
    home = Home(tmp_path)
    cells = [cell(10, 1), cell(10, 1, repetition=1)]
    rows = [[{"test/error": 0.5, "communication/floats_up": scale * at} for at in (1.0, 2.0)] for scale in (10, 30)]
    results = [stored(home, config, each) for config, each in zip(cells, rows, strict=True)]
    figure = CurvesConfig(metric="accuracy", panels=("privacy.noise_multiplier",), against="floats")
    (curve,) = curves(home, figure, cells, results)
    assert curve.floats == (20.0, 40.0) and curve.rounds == (1, 2)
    assert "published" not in draw_curves(tmp_path / "place", figure, "a title", [curve])
    assert {path.name for path in (tmp_path / "place").iterdir()} == {
        "plot-accuracy-by-floats.png",
        "table-accuracy-by-floats.json",
    }


def test_ends_are_compared_run_by_run_with_the_baseline_of_their_panel(tmp_path):
    """By hand: differences 1, 2 and 6, mean 3, deviation sqrt(7), half width 4.303 sqrt(7/3); of one run none."""
    home, cells, results = Home(tmp_path), [], []
    for method, errors in (("fedavg", (0.5, 0.4, 0.3)), ("fedprox", (0.38, 0.24, 0.49))):
        seeds = (0, 1, 2) if method == "fedavg" else (1, 2, 0)
        for seed, error in zip(seeds, errors, strict=True):
            config = experiment(seed=seed, algorithm={"name": method, "rounds": 4, "local_steps": 2})
            cells.append(config)
            results.append(stored(home, config, [{"test/error": 0.9}, {"test/error": error}]))
    figure = CurvesConfig(metric="accuracy", panels=("privacy.noise_multiplier",), baseline="DP-fedavg")
    made = curves(home, figure, cells, results)
    text = draw_curves(tmp_path / "place", figure, "a title", made)
    width = stats.t.ppf(0.975, 2) * math.sqrt(7 / 3)
    assert width == pytest.approx(4.303 * math.sqrt(7 / 3), rel=1e-4)
    above, below = text.split("difference from DP-fedavg, run by run, 95 % interval")
    assert f"| DP-fedprox | 3.00 ± {width:.2f} | 3 |" in below and "DP-fedavg |" not in below
    assert f"| DP-fedavg | 60.00 ± {stats.t.ppf(0.975, 2) * 10 / math.sqrt(3):.2f} | 3 |" in above
    (alone,) = differences([replace(curve, ends=curve.ends[:1], seeds=((0, 0),)) for curve in made], "DP-fedavg")
    assert half_width(alone.ends) is None
    with pytest.raises(InputError, match=r"DP-fedprox in panel .* has other trials than the baseline DP-fedavg"):
        curves_of_fewer = [made[0], replace(made[1], ends=made[1].ends[:2], seeds=made[1].seeds[:2])]
        draw_curves(tmp_path / "other", figure, "a title", curves_of_fewer)


def test_least_losses_are_compared_by_a_paired_test_and_a_run_without_noise_is_in_every_panel(tmp_path):
    """By hand: least losses 1, 2, 3 against 2, 4, 6: differences -1, -2, -3, t = -2 / (1 / sqrt(3)), 2 degrees."""
    home, cells, results = Home(tmp_path), [], []

    def run(loss, seed, **sections):
        config = experiment(seed=seed, **sections)
        cells.append(config)
        rows = [{"simulation/train_loss": value} for value in (9.0, loss, loss + 0.5)]
        results.append(stored(home, config, rows))

    for seed in range(3):
        for trust in ("inter-silo", "central"):
            privacy = {"epsilon": 3, "trust": trust}
            run(2.0 * (seed + 1), seed, algorithm={"name": "diff2", "rounds": 3, "period": 1}, privacy=privacy)
            run(1.0 * (seed + 1), seed, algorithm={"name": "diff2", "rounds": 3, "period": 2}, privacy=privacy)
        run(0.5, seed, algorithm={"name": "diff2", "rounds": 3, "period": 1}, privacy={"trust": "none"})
    figure = CurvesConfig(
        metric="train_loss",
        panels=("privacy.trust", "seed"),
        apart=("algorithm.period",),
        ends="least",
        baseline="DP-diff2, period 1",
    )
    made = curves(home, figure, cells, results)
    assert {curve.panel for curve in made if curve.label == "diff2, period 1"} == {
        (trust, seed) for trust in ("inter-silo", "central") for seed in range(3)
    }
    figure = figure.model_copy(update={"panels": ("privacy.trust",)})
    made = curves(home, figure, cells, results)
    text = draw_curves(tmp_path / "place", figure, "a title", made)
    p = stats.t.cdf(-2 * math.sqrt(3), 2)
    assert p == pytest.approx(0.0371, abs=1e-4)
    assert f"| DP-diff2, period 2 | {p:.2g} | {p:.2g} |" in text
    assert "training loss, not private, at its least" in text and "| diff2, period 1 | 0.5 ± 0 | 0.5 ± 0 | 3 |" in text
    assert "from raw records without noise" in (tmp_path / "place" / "table-train_loss.json").read_text()


def test_gaps_are_to_the_least_training_loss_of_all_records(tmp_path):
    home, config = Home(tmp_path), experiment()
    made = Experiment.prepare(config, home.silos)
    least = least_training_loss(made)
    # A second way: another solver on the pooled records, with the loss written down again.
    from fedcore.data.silo_file import open_records

    records = [open_records(source) for source in made.dataset.sources]
    X, y = np.concatenate([r.X for r in records]), np.concatenate([r.y for r in records]).astype(int)

    def loss(w):
        return -log_softmax(X @ w.reshape(3, -1).T, axis=1)[np.arange(len(y)), y].mean()

    best = minimize(loss, np.zeros(3 * X.shape[1]), method="BFGS", options={"gtol": 1e-7}).fun
    assert least == pytest.approx(best, abs=1e-8)

    privacy = config.privacy.model_copy(update={"noise": "guarded", "ledger": "sqlite"})
    with pytest.raises(InputError, match="show nothing but releases"):
        least_training_loss(replace(made, config=config.model_copy(update={"privacy": privacy})))

    results = [stored(home, config, [{"simulation/train_loss": least + math.e}])]
    figure = CurvesConfig(metric="gap", panels=("seed",))
    (curve,) = curves(home, figure, [config], results)
    assert curve.mean == pytest.approx((1.0,))
    (kept,) = (tmp_path / "cache" / "optimum").glob("*.json")
    assert json.loads(kept.read_text())["least_training_loss"] == least
    assert "from raw records without noise" in kept.read_text()
    draw_curves(tmp_path / "place", figure, "a title", [curve])
    assert "from raw records without noise" in (tmp_path / "place" / "table-gap.json").read_text()
    lower = stored(home, experiment(seed=7), [{"simulation/train_loss": 0.0}])
    with pytest.raises(InputError, match=r"a training loss of 0 is below \d"):
        curves(home, figure, [experiment(seed=7)], [lower])


def test_a_least_loss_that_does_not_exist_is_told(tmp_path, monkeypatch):
    """Two records of two classes are separable, so the loss falls for ever."""
    made = Experiment.prepare(experiment(), Home(tmp_path).silos)
    records = Records(np.array([[1.0, 0.0, 1.0], [-1.0, 0.0, 1.0]]), np.array([0.0, 1.0]))
    monkeypatch.setattr("studies.figures.optimum.open_records", lambda source: records)
    with pytest.raises(InputError, match="no least training loss was found"):
        least_training_loss(made, tolerance=1e-300)
