"""The study `minibatch`: values of its configs, relative RMSE, curves of one method, a tiny figure from runs."""

from __future__ import annotations

import json
import math

import pytest

from fedcore.configfile.reading import validated
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from fedcore.experiment.result import RunResult
from fedcore.experiment.sweep import SweepConfig
from fedcore.home import Home
from studies import study
from studies.drawing import draw
from studies.figures.drawn_points import accounted, differences, markdown
from studies.figures.points import PointsConfig, points
from studies.study import FigureConfig, load_study
from tests.flows.driving import run
from tests.flows.results import made_result

RMSE = PointsConfig(metric="relative RMSE")
APART = PointsConfig(apart=("privacy.calibration", "algorithm.local_steps"))


def cell(seed: int = 0, clip: float | None = None, calibration: str = "exact", epsilon: float | None = 1.0, **method):
    privacy = {"trust": "none"} if epsilon is None else {"epsilon": epsilon, "calibration": calibration}
    return ExperimentConfig.model_validate(
        {
            "seed": seed,
            "privacy": privacy,
            "model": {"clip": clip},
            "algorithm": {"name": "mbsgd", "rounds": 2, **method},
        }
    )


def result(error: float, loss: float | None = None, epsilon: float | None = 1.0, **values) -> RunResult:
    simulation = {} if loss is None else {"simulation": {"train_loss": loss}}
    epsilons = {"epsilon_target": epsilon, "epsilon_accounted": epsilon}
    return made_result(test_error=error, **epsilons | values, **simulation)


def numbers(rmse: float, loss: float, mean: float = 4.0) -> RunResult:
    return made_result(test_error=None, test_rmse=rmse, mean_rmse=mean, simulation={"train_loss": loss})


def test_relative_rmse_is_drawn_of_the_clip_with_the_least_training_loss():
    made = [
        (cell(0, 1.0), numbers(3.0, 0.2)),
        (cell(0, 2.0), numbers(5.0, 0.1)),  # trial 0: clip 2, 5 / 4
        (cell(1, 1.0), numbers(2.0, 0.2)),
        (cell(1, 2.0), numbers(1.0, 0.3)),  # trial 1: clip 1, 2 / 4
    ]
    (found,) = points([config for config, _ in made], [value for _, value in made], RMSE)
    assert found.errors == (1.25, 0.5) and found.metric == "relative RMSE"
    assert sorted(json.loads(key)["clip"] for key in found.chosen) == [1.0, 2.0]
    assert (found.line.measure, found.line.baseline) == ("relative RMSE", 1.0)
    with pytest.raises(InputError, match="a figure of relative RMSE needs public test data of real labels"):
        points([cell()], [result(0.1)], RMSE)
    with pytest.raises(InputError, match="a figure of test errors needs public test data of classes"):
        points([cell()], [numbers(1.0, 0.1)], PointsConfig())


def test_curves_of_one_method_are_told_apart_by_keys_and_say_what_their_noise_spends():
    made = [
        (cell(), result(0.2)),
        (cell(calibration="paper"), result(0.4, epsilon_accounted=0.0251)),
        (cell(name="fedavg", local_steps=5), result(0.3, method="fedavg")),
        (cell(name="fedavg", local_steps=9), result(0.35, method="fedavg")),
        (cell(name="fedavg", local_steps=9, epsilon=None), result(0.15, epsilon=None, method="fedavg")),
    ]
    found = points([config for config, _ in made], [value for _, value in made], APART)
    assert [point.method for point in found] == [
        "mbsgd, calibration exact",
        "mbsgd, calibration paper",
        "fedavg, calibration exact, local steps 5",
        "fedavg, calibration exact, local steps 9",
        "fedavg, calibration exact, local steps 9",
    ]
    assert markdown(found).splitlines()[0] == "| method | epsilon 1 | no privacy | trials |"
    assert markdown(found).splitlines()[3] == "| mbsgd, calibration paper | 0.400 | - | 1 |"
    assert markdown(found).splitlines()[5] == "| fedavg, calibration exact, local steps 9 | 0.350 | 0.150 | 1 |"
    # Only what is not at its target, rounded up.
    spent = ["| method | epsilon 1 |", "|---|---|", "| mbsgd, calibration paper | 0.0251 |"]
    assert accounted(found).splitlines()[3:] == spent
    assert accounted(found[:1]) == ""
    # Where the baseline has no point there is no difference.
    apart = differences(found, "mbsgd, calibration exact")
    assert [point.epsilon for point in apart] == [1.0, 1.0, 1.0]
    assert [point.mean for point in apart] == pytest.approx([0.2, 0.1, 0.15])
    with pytest.raises(InputError, match=r"no curve is called 'mbsgd', the baseline; there are mbsgd, cal"):
        differences(found, "mbsgd")
    with pytest.raises(InputError, match=r"figure: no experiment has a key algorithm\.warmth"):
        points([cell()], [result(0.1)], PointsConfig(apart=("algorithm.warmth",)))


def figures(tmp_path, monkeypatch) -> dict[str, tuple[FigureConfig, SweepConfig]]:
    for folder in ("mnist", "insurance"):
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(study, "load_labels", lambda folder, flavour: None)
    monkeypatch.setattr(study, "load_insurance", lambda folder: None)
    return {figure.name: (figure, sweep) for figure, sweep in load_study("minibatch", Home(tmp_path))[0]}


def test_every_method_of_a_figure_has_as_many_candidates_and_about_as_many_gradients(tmp_path, monkeypatch):
    of_each_sweep = {figure.sweep: (figure, sweep) for figure, sweep in figures(tmp_path, monkeypatch).values()}
    assert len(of_each_sweep) == 7
    for figure, sweep in of_each_sweep.values():
        name, cells = figure.name, sweep.cells()
        tried: dict[tuple, set] = {}
        for each in cells:
            key = each.algorithm.name, each.privacy.calibration, each.privacy.epsilon, each.seed
            tried.setdefault(key, set()).add(each.model_dump_json(include={"algorithm", "model"}))
        assert len({len(settings) for settings in tried.values()}) == 1, name
        assert {seed for *_, seed in tried} == set(range(10)), name
        assert {each.privacy.trust for each in cells} == {"inter-silo", "none"} or name == "digits-published"
        assert figure.baseline.split(",")[0] in {each.algorithm.name for each in cells}
        if figure.images is None and figure.records is None:
            counts = {}
            for each in cells:
                if each.seed == 0 and each.privacy.trust == "none":
                    plan = make_plan(each)
                    counts[each.algorithm.name] = plan.phases[0].gradient_evaluations(plan.problem.participants)
            if counts:  # samples of a fifth are rounded down
                assert 0.9 < counts["fedavg"] / counts["mbsgd"] <= 1.01, name


def test_figures_of_a_file_are_left_out_without_it(tmp_path):
    made, left_out = load_study("minibatch", Home(tmp_path))
    assert {figure.name.split("-")[0] for figure, _ in made} == {"digits", "diabetes"}
    mnist, insurance = left_out.splitlines()
    assert mnist.startswith("left out: mnist-25, mnist-18, mnist-12; data.folder = ")
    assert insurance.startswith("left out: insurance-3, insurance-5, insurance-10; data.folder = ")
    assert f"there is no insurance.csv in {tmp_path / 'insurance'}; nothing is downloaded" in insurance
    with pytest.raises(InputError, match=r"there is no insurance\.csv"):
        load_study("minibatch", Home(tmp_path), [], ["insurance-3"])


def test_a_tiny_figure_of_regression_from_runs_to_table_and_plot(tmp_path):
    base = {
        "data": {"source": "regression", "silos": 3},
        "model": {"loss": {"name": "squared"}},
        "cluster": {"backend": "in-process"},
        "tracking": {"mlflow": False, "evaluate_every": 100},
    }
    private = {"privacy.epsilon": [50], "seed": [0, 1], "model.clip": [0.001, 1], "algorithm.step": [8]}
    sweep = validated(
        SweepConfig,
        {
            "name": "tiny",
            "base": base,
            "variants": [
                {"set": {"algorithm": {"name": "mbsgd", "rounds": 20, "average": "last"}}, "grid": private},
                {"set": {"algorithm": {"name": "fedavg", "rounds": 3, "local_steps": 2}}, "grid": private},
            ],
        },
        "test",
    )
    figure = validated(
        FigureConfig,
        {"name": "one", "title": "One", "sweep": "-", "baseline": "fedavg", "points": {"metric": "relative RMSE"}},
        "test",
    )
    home, cells = Home(tmp_path).make(), sweep.cells()
    results = [run(home, each) for each in cells]
    folder = draw(home, "tiny", figure, cells, results)
    table = json.loads((folder / "table.json").read_text())
    by_method = {point["method"]: point for point in table["points"]}
    assert table["metric"] == "relative RMSE" and by_method.keys() == {"mbsgd", "fedavg"}
    for point in by_method.values():
        # A clip of 0.001 hardly moves the model, so the other one has less loss in every trial.
        assert list(map(lambda key: json.loads(key)["clip"], point["chosen"])) == [1.0]
        wanted = [
            each.test_rmse / each.mean_rmse
            for config, each in zip(cells, results, strict=True)
            if config.algorithm.name == point["method"] and config.model.clip == 1.0
        ]
        assert point["errors"] == pytest.approx(wanted)
    # 20 steps of gradient descent with hardly any noise are better than the mean.
    assert all(error < 0.95 for error in by_method["mbsgd"]["errors"])
    assert all(math.isfinite(error) for error in by_method["fedavg"]["errors"])
    assert (folder / "plot.png").read_bytes()[:4] == b"\x89PNG"
    assert "Difference from fedavg in the same trials" in (folder / "table.md").read_text()
