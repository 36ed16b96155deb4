"""The bound on a record's norm: every constant that rests on it holds for the records that silos really prepare."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedcore.data.dataset import prepare
from fedcore.data.records import prepare_records
from fedcore.data.silo_file import open_records
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.experiment.problem import make_problem, training_loss
from fedcore.experiment.statistics import raw_model
from fedcore.experiment.statistics_run import StatisticsRun
from fedcore.losses import Logistic
from fedcore.models import SoftmaxRegression, model_of
from fedcore.models.model_config import ModelConfig
from fedcore.planning.problem import SiloFacts

SILOS = [SiloFacts("a", 40), SiloFacts("b", 50)]


def config(model, data=None, algorithm="mbsgd"):
    values = {"model": model, "privacy": {"epsilon": 1.0}, "algorithm": {"name": algorithm}}
    return ExperimentConfig.model_validate(values if data is None else {**values, "data": data})


def longest(model, features=3, n=400):
    """Prepared records as long as they can be, in random directions."""
    X = np.random.default_rng(0).standard_normal((n, features)) * 1e6
    return prepare_records(X, np.zeros(n), model.bias, model.feature_bound, normalise=model.normalise).X


@pytest.mark.parametrize("bound", [0.3, 1.0, 4.0])
@pytest.mark.parametrize(("bias", "normalise"), [(True, "record"), (False, "record"), (True, "features")])
def test_it_is_the_norm_of_the_longest_record(bound, bias, normalise):
    model = ModelConfig(bias=bias, normalise=normalise, feature_bound=bound)
    length = np.linalg.norm(longest(model), axis=1).max()
    assert length == pytest.approx(model.record_bound, rel=1e-12) and length <= model.record_bound * (1 + 1e-15)


@pytest.mark.parametrize(("normalise", "squared"), [("record", 4.0), ("features", 5.0)])
def test_constants_of_the_problem_are_those_of_such_records(normalise, squared):
    """feature_bound 2: |x|^2 is 4, or 5. Logistic: L = |x| and beta = |x|^2 / 4; softmax: sqrt(2) |x| and |x|^2 / 2."""
    shared = {"feature_bound": 2.0, "normalise": normalise}
    logistic = make_problem(config(shared), SILOS, 4)
    assert logistic.objective.clip == pytest.approx(
        math.sqrt(squared)
    ) and logistic.objective.smoothness == pytest.approx(squared / 4)
    made = config({**shared, "loss": {"name": "softmax"}})
    softmax = make_problem(made, SILOS, 4)
    assert softmax.objective.clip == pytest.approx(
        math.sqrt(2 * squared)
    ) and softmax.objective.smoothness == pytest.approx(squared / 2)
    assert make_problem(config({**shared, "clip": 0.1}), SILOS, 4).objective.clip == 0.1


@pytest.mark.parametrize("normalise", ["record", "features"])
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_gradients_and_their_changes_stay_below_the_constants(loss, normalise):
    """Of the longest records, at random weights: no gradient is clipped at the default bound, and some come close."""
    made = config({"feature_bound": 3.0, "normalise": normalise, "loss": {"name": loss}})
    model, objective = made.model, SoftmaxRegression(3) if loss == "softmax" else Logistic()
    X, rng = longest(model), np.random.default_rng(1)
    y = rng.integers(0, 3, len(X)).astype(float) if loss == "softmax" else rng.choice([-1.0, 1.0], len(X))
    known, width = model_of(objective), model_of(objective).weights(X.shape[1])
    beta, gradients, changes = objective.smoothness * model.record_bound**2, [], []
    for x, label in zip(X[:, None, :], y[:, None], strict=True):
        free = known.bounds(x, label, 1e9)
        w, v = rng.standard_normal((2, width)) * 10
        near = w + 1e-4 * v
        first, second = (known.clipped_gradient_sum(at, x, label, free) for at in (w, near))
        gradients.append(np.linalg.norm(first))
        changes.append(np.linalg.norm(first - second) / np.linalg.norm(near - w))
        clipped = known.clipped_gradient_sum(w, x, label, known.bounds(x, label, model.gradient_bound))
        np.testing.assert_allclose(clipped, first, rtol=1e-9)
    assert 0.99 * model.gradient_bound < max(gradients) <= model.gradient_bound * (1 + 1e-12)
    assert max(changes) <= beta * (1 + 1e-6)


@pytest.mark.parametrize(
    "smoothing", ["{name: moreau}", "{name: convolution}", "{name: convolution, estimate: sampled}"]
)
def test_smoothed_losses_are_smooth_for_such_records(smoothing):
    """For feature_bound 1 a record's norm is sqrt(2): the same as without the key at feature_bound sqrt(2)."""
    import yaml

    shared = {"loss": {"name": "hinge"}, "smoothing": yaml.safe_load(smoothing)}
    apart = config({**shared, "normalise": "features"}, algorithm="localized-mbsgd")
    whole = config({**shared, "feature_bound": math.sqrt(2)}, algorithm="localized-mbsgd")
    first, second = (make_problem(made, SILOS, 4) for made in (apart, whole))
    assert (first.objective.smoothness, first.objective.clip) == pytest.approx(
        (second.objective.smoothness, second.objective.clip)
    )
    losses = [training_loss(made, problem) for made, problem in ((apart, first), (whole, second))]
    assert losses[0].smoothness == pytest.approx(losses[1].smoothness)


def test_a_plan_and_its_silos_use_it(tmp_path):
    """From a config to opened silos: records of norm sqrt(2), the planned clipping bound twice that of the loss."""
    made = Experiment.prepare(
        config(
            {"normalise": "features", "loss": {"name": "softmax"}},
            {"source": "synthetic", "silos": 2, "records": 50, "features": 6, "classes": 3, "test_records": 20},
        ),
        tmp_path,
    )
    assert made.plan.problem.objective.clip == pytest.approx(2.0) and made.plan.phases[
        0
    ].question.clip == pytest.approx(2.0)
    for source in made.dataset.sources:
        lengths = np.linalg.norm(open_records(source).X, axis=1)
        assert lengths.max() == pytest.approx(math.sqrt(2)) and source.normalise == "features"
        raw = open_records(replace(source, bias=False, feature_bound=1e300)).X
        np.testing.assert_allclose(lengths, np.sqrt(np.minimum(1, np.linalg.norm(raw, axis=1)) ** 2 + 1))
    assert np.linalg.norm(made.dataset.test.X, axis=1).max() <= math.sqrt(2) * (1 + 1e-15)


def test_a_user_s_files_are_prepared_so_too(tmp_path):
    (tmp_path / "a.csv").write_text("x,y,label\n3,4,0\n0.3,0.4,1\n")
    data = {
        "source": "files",
        "silos": [{"name": "a", "path": str(tmp_path / "a.csv")}],
        "features": ["x", "y"],
        "label": "label",
    }
    made = config({"normalise": "features"}, data)
    ready = prepare(made.data, made.model, 0, tmp_path / "root")
    np.testing.assert_allclose(open_records(ready.sources[0]).X, [[0.6, 0.8, 1], [0.3, 0.4, 1]])


def test_moments_before_a_run_are_bounded_without_a_bias(tmp_path):
    """Their records have no bias, so their bound is that of the release, whatever scaling training uses."""
    pca = {"constants": "released", "epsilon": 1, "dimension": 3, "bound": 0.5}
    made = config({"normalise": "features"}, {"source": "digits", "pca": pca})
    assert raw_model(made, 0.5).record_bound == 0.5
    run = StatisticsRun.prepare(made, tmp_path)
    for source in run.dataset.sources[:3]:
        assert np.linalg.norm(open_records(source).X, axis=1).max() <= 0.5
    other = StatisticsRun.prepare(config({}, {"source": "digits", "pca": pca}), tmp_path)
    assert run.run == other.run and run.plan.digest == other.plan.digest
