"""A study: the choice of hyperparameters, intervals, and a small paper from nothing to figures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from fedcore.data.silo_file import open_records
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.experiment.result import RunResult
from fedcore.home import Home
from studies import study
from studies.figures.drawn_points import differences, draw_points, markdown
from studies.figures.points import PointsConfig, points
from studies.study import largest, load_study, load_trials
from tests.flows.results import made_result
from tests.patience import HANGS
from tests.selection import some_in_make_test

CONF = Path(__file__).parents[2] / "studies" / "conf"


def cell(seed: int, step: float, epsilon: float = 1.0, repetition: int = 0) -> ExperimentConfig:
    return ExperimentConfig.model_validate(
        {
            "seed": seed,
            "repetition": repetition,
            "privacy": {"epsilon": epsilon},
            "algorithm": {"name": "mbsgd", "step": step, "rounds": 2},
        }
    )


def result(error: float, loss: float | None, epsilon: float = 1.0) -> RunResult:
    simulation = {} if loss is None else {"simulation": {"train_loss": loss}}
    return made_result(epsilon_target=epsilon, epsilon_accounted=epsilon, test_error=error, **simulation)


def test_each_trial_takes_the_candidate_with_the_lowest_average_loss_of_its_runs():
    made = [
        # Trial 0: step 1 has one run with the lowest loss of all and a bad one; step 2 is better on average.
        (cell(0, 1), result(0.10, 0.1)),
        (cell(0, 1, repetition=1), result(0.20, 0.9)),
        (cell(0, 2), result(0.30, 0.3)),
        (cell(0, 2, repetition=1), result(0.40, 0.5)),
        # Trial 1: step 1.
        (cell(1, 1), result(0.50, 0.2)),
        (cell(1, 1, repetition=1), result(0.60, 0.2)),
        (cell(1, 2), result(0.01, 0.3)),
        (cell(1, 2, repetition=1), result(0.01, 0.3)),
        (cell(0, 1, 2.0), result(0.7, None, 2.0)),
    ]
    first, second = points([config for config, _ in made], [value for _, value in made], PointsConfig())
    assert first.errors == pytest.approx((0.35, 0.55)) and first.mean == pytest.approx(0.45)
    assert sorted(first.chosen.values()) == [1, 1]
    # By hand: deviation 0.2 / sqrt 2; interval = t(0.975, 1) * deviation / sqrt 2 = 12.7062 * 0.1.
    assert first.deviation == pytest.approx(0.2 / 2**0.5)
    assert first.interval == pytest.approx(1.27062, rel=1e-5)
    assert second.errors == (0.7,) and second.interval is None
    assert markdown([first, second]).splitlines()[2] == "| mbsgd | 0.450 ± 1.271 | 0.700 | 2 |"


def test_differences_are_taken_trial_by_trial():
    base = points([cell(0, 1), cell(1, 1)], [result(0.30, None), result(0.50, None)], PointsConfig())
    other = [replace(point, method="other", errors=(0.25, 0.47)) for point in base]
    (found,) = differences([*base, *other], "mbsgd")
    # By hand: -0.05 and -0.03; mean -0.04, deviation 0.02 / sqrt 2, half width 12.7062 * 0.01.
    assert found.method == "other" and found.errors == pytest.approx((-0.05, -0.03))
    assert (found.mean, found.interval) == pytest.approx((-0.04, 0.127062), rel=1e-5)
    assert markdown([found]).splitlines()[2] == "| other | -0.040 ± 0.127 | 2 |"
    with pytest.raises(InputError, match=r"other at epsilon 1\.0 has other trials than the baseline mbsgd"):
        differences([*base, replace(other[0], seeds=(1, 2))], "mbsgd")
    (swapped,) = differences([*base, replace(other[0], seeds=(1, 0))], "mbsgd")
    assert swapped.errors == pytest.approx((-0.25, 0.17))  # by seed, not by place


def test_a_choice_without_a_training_loss_is_refused():
    with pytest.raises(InputError, match=r"tracking\.simulation_metrics=true"):
        points([cell(0, 1), cell(0, 2)], [result(0.1, None), result(0.2, None)], PointsConfig())


def test_points_lie_at_the_values_of_any_key(tmp_path):
    cells, results = [cell(0, 1), cell(1, 1)], [result(0.2, None), result(0.4, None)]
    few = [value.model_copy(update={"rounds": 5}) for value in results]
    many = [value.model_copy(update={"rounds": 80, "test_error": 0.1}) for value in results]
    plain = [value.model_copy(update={"rounds": 5, "epsilon_target": None, "test_error": 0.05}) for value in results]
    against = PointsConfig(against="rounds")
    found = points(cells * 3, few + many + plain, against)
    assert [(point.method, point.at, point.mean) for point in found] == [
        ("mbsgd", 5, pytest.approx(0.3)),
        ("mbsgd", 80, pytest.approx(0.1)),
        ("mbsgd, no privacy", 5, pytest.approx(0.05)),
    ]
    # By hand: deviation 0.2 / sqrt 2, half width 12.7062 * 0.1.
    assert markdown(found).splitlines()[0:3] == [
        "| method | rounds 5 | rounds 80 | trials |",
        "|---|---|---|---|",
        "| mbsgd | 0.300 ± 1.271 | 0.100 ± 0.000 | 2 |",
    ]
    (apart,) = differences(found, "mbsgd")
    assert apart.at == 5 and apart.errors == pytest.approx((-0.15, -0.35))
    assert [point.at for point in points(cells, few, PointsConfig(against="algorithm.step"))] == [1.0]
    draw_points(tmp_path, against, "rounds", None, found)
    assert (tmp_path / "plot.png").read_bytes()[:4] == b"\x89PNG"
    rows = json.loads((tmp_path / "table.json").read_text())["points"]
    assert [row["rounds"] for row in rows] == [5, 80, 5]
    other = [value.model_copy(update={"epsilon_target": 2.0}) for value in few]
    with pytest.raises(InputError, match="mbsgd has runs of several epsilons at one place"):
        points([cells[0], cell(0, 1, 2.0)], [few[0], other[0]], against)


def test_excess_losses_are_those_above_the_least_one(tmp_path):
    """The least loss of all records together, by another solver: scikit-learn's Newton method without a penalty."""
    data = {"source": "synthetic", "silos": 2, "records": 200, "features": 3, "heterogeneity": 0.5, "test_records": 10}
    config = ExperimentConfig.model_validate(
        {"data": data, "privacy": {"epsilon": 1}, "algorithm": {"name": "mbsgd", "rounds": 2}}
    )
    home = Home(tmp_path)
    records = [open_records(source) for source in Experiment.prepare(config, home.silos).dataset.sources]
    X, y = np.concatenate([each.X for each in records]), np.concatenate([each.y for each in records])
    fitted = LogisticRegression(C=np.inf, fit_intercept=False, solver="newton-cholesky", tol=1e-10).fit(X, y)
    least = log_loss(y, fitted.predict_proba(X))
    made = result(0.3, least + 0.25).model_copy(update={"simulation": {"train_loss": least + 0.25}})
    (found,) = points([config], [made], PointsConfig(metric="excess loss"), home)
    assert found.mean == pytest.approx(0.25, abs=1e-7)
    assert markdown([found]).splitlines()[2] == "| mbsgd | 0.2500 | 1 |"
    with pytest.raises(InputError, match="a figure of excess losses needs training losses"):
        points([config], [result(0.3, None)], PointsConfig(metric="excess loss"), home)
    with pytest.raises(InputError, match=r"is below .*, a local minimum only"):
        points([config], [result(0.3, least - 0.1)], PointsConfig(metric="excess loss"), home)


def test_what_is_not_there_is_told(tmp_path):
    with pytest.raises(InputError, match=r"no study is called .other.; there are: .*localized"):
        load_study("other", Home(tmp_path))


PAPERS = sorted(path.parent.name for path in CONF.glob("*/figures.yaml") if path.parent.name != "sweeps")
"""Studies but for the sweeps that come with fedcore, where runs without noise have one seed."""


@pytest.mark.parametrize("name", some_in_make_test(PAPERS, set(PAPERS) - {"five-way"}, []))
def test_every_paper_that_is_there_has_cells(name, tmp_path, monkeypatch):
    for folder in ("mnist", "emnist-balanced", "insurance"):
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(study, "load_labels", lambda folder, flavour: None)  # configs alone, no files
    monkeypatch.setattr(study, "load_insurance", lambda folder: None)
    for figure, sweep in load_study(name, Home(tmp_path))[0]:
        trials = load_trials(name, figure)
        cells = sweep.cells() if trials is None else largest(figure, sweep, trials)
        assert cells, figure.name
        # Trials are redrawn, and every method sees the same ones at the same budgets.
        seen = {config.algorithm.name: set() for config in cells}
        for config in cells:
            seen[config.algorithm.name].add((config.seed, config.repetition, config.privacy.epsilon))
        assert len(set(map(frozenset, seen.values()))) == 1


def test_mnist_is_drawn_where_its_files_are_and_else_left_out_with_a_sentence(tmp_path):
    made, left_out = load_study("localized", Home(tmp_path))
    assert [figure.name for figure, _ in made] == ["digits-reliable", "digits-unreliable"]
    assert left_out.startswith("left out: mnist-reliable, mnist-unreliable; data.folder = ")
    assert str(tmp_path / "mnist") in left_out and "t10k-labels-idx1-ubyte" in left_out
    for overrides, only, folder in (([], ["mnist-reliable"], tmp_path / "mnist"), (["data.folder=/none"], [], "/none")):
        with pytest.raises(InputError, match=rf"mnist needs .* in {folder}, each"):
            load_study("localized", Home(tmp_path), overrides, only)

    (tmp_path / "mnist").mkdir()
    with pytest.raises(InputError, match="mnist needs train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-"):
        load_study("localized", Home(tmp_path))


def test_single_figures_can_be_asked_for(tmp_path):
    made, _ = load_study("scaffold", Home(tmp_path), [], ["table-4", "tuning"])
    assert [figure.name for figure, _ in made] == ["tuning", "table-4"]
    with pytest.raises(InputError, match=r"scaffold has no figure 'table-9'; there are: .*table-1, table-4"):
        load_study("scaffold", Home(tmp_path), [], ["table-9"])


def test_figures_of_one_sweep_differ_by_what_they_set(tmp_path):
    (_, reliable), (_, unreliable) = load_study("localized", Home(tmp_path), ["data.test_fraction=0.25"])[0]
    assert (reliable.name, unreliable.name) == ("localized-digits-reliable", "localized-digits-unreliable")
    for sweep, count in ((reliable, None), (unreliable, 18)):
        cells = sweep.cells()
        assert len(cells) == 5 * 5 * 3 * 3 * 3  # epsilons, trials, runs, candidates, methods
        assert {cell.participation.silos_per_round for cell in cells} == {count}
        assert {cell.data.test_fraction for cell in cells} == {0.25}


@pytest.mark.minutes
@pytest.mark.slow
def test_a_reproduction_that_is_killed_goes_on_to_its_figures(tmp_path, monkeypatch):
    folder = tmp_path / "paper" / "small"
    folder.mkdir(parents=True)
    (folder / "figures.yaml").write_text(
        yaml.safe_dump(
            {
                "title": "small",
                "paper": "none",
                "minutes": 1,
                "figures": [
                    {"name": "one", "title": "One figure", "sweep": "one.yaml"},
                    {"name": "two", "title": "Another", "sweep": "one.yaml", "set": {"data.records": 50}},
                ],
            }
        )
    )
    (folder / "one.yaml").write_text(
        yaml.safe_dump(
            {
                "name": "one",
                "base": {
                    "data": {"source": "synthetic", "silos": 2, "records": 60, "features": 3, "test_records": 100},
                    "cluster": {"backend": "in-process"},
                    "orchestration": {"tasks": "phase"},
                    "tracking": {"mlflow": False, "evaluate_every": 100},
                },
                "grid": {"seed": [0, 1], "privacy.epsilon": [1, 4], "algorithm.step": [0.5, 1]},
                "variants": [{"set": {"algorithm": {"name": "mbsgd", "rounds": 200}}}],
            }
        )
    )
    code = (
        "import sys; from pathlib import Path; import studies.study as module\n"
        f"module.STUDIES = Path({str(tmp_path / 'paper')!r})\n"
        "sys.argv = ['studies', 'run', 'small', '--json']\n"
        "from flows.commands.app import main; from studies.commands import app\n"
        "try:\n    main(app, 'studies')\nfinally:\n    from prefect.events.worker import EventsWorker\n"
        "    print('senders left:', len(EventsWorker._instances), file=sys.stderr)"
    )
    home = tmp_path / "home"
    environment = os.environ | {"FEDCORE_HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[2])}

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    process = start()
    until = time.monotonic() + HANGS
    while len(list((home / "runs").glob("*/result.json"))) < 3:
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    finished = {path: path.read_bytes() for path in (home / "runs").glob("*/result.json")}
    assert 3 <= len(finished) < 8

    process = start()
    out, err = process.communicate(timeout=HANGS)
    assert process.returncode == 0, err
    # Two sweeps of one process may have a server each: the first must have received all its events.
    assert "senders left: 0" in err and "ERROR" not in out + err
    place = Path(json.loads(out)["one"]["folder"])
    assert (place / "plot.png").read_bytes()[:4] == b"\x89PNG"
    table = json.loads((place / "table.json").read_text())
    shown = [(point["method"], point["epsilon"], len(point["errors"])) for point in table["points"]]
    assert shown == [("mbsgd", 1, 2), ("mbsgd", 4, 2)]
    assert all(sum(p["chosen"].values()) == 2 for p in table["points"])
    assert all(path.read_bytes() == kept for path, kept in finished.items())  # none was run again


def test_studies_are_found_from_the_code_and_not_from_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert study.STUDIES == CONF and load_study("localized", Home(tmp_path))
