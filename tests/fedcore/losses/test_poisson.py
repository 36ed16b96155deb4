"""The Poisson loss: against sixty digits, scikit-learn's fit, and the constants of its domain."""

import math
import warnings

import mpmath
import numpy as np
import pytest
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import mean_poisson_deviance

import fedcore
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from fedcore.losses import COUNTS, LOSSES, Poisson
from fedcore.losses.traits import HELD
from fedcore.models import Linear
from fedcore.models.model_config import ModelConfig

mpmath.mp.dps = 60
SCORES, LABELS = [-700.0, -30.0, -1.5, -1e-9, 0.0, 0.3, 2.0, 25.0, 290.0], [0.0, 1.0, 2.0, 7.0, 1e6]
PAIRS = [(z, y) for z in SCORES for y in LABELS]
MODEL = {"loss": {"name": "poisson"}, "clip": 1.0}
REST = {"privacy": {"epsilon": 1}, "algorithm": {"name": "mbsgd", "rounds": 3}}


def exactly(z, y):
    """Value, derivative and second derivative, in sixty digits."""
    mean = mpmath.exp(mpmath.mpf(z))
    least = y - (mpmath.mpf(y) * mpmath.log(y) if y else 0)
    return mean - mpmath.mpf(y) * mpmath.mpf(z) - least, mean - y, mean


def drawn(seed, n):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-0.6, 0.6, (n, 2))
    return X, rng.poisson(np.exp(X @ [1.0, -0.7] + 0.8)).astype(float)


def prepared(X):
    """A bias of 1, then each record brought to norm at most 1."""
    longer = np.hstack([X, np.ones((len(X), 1))])
    return longer / np.maximum(1.0, np.linalg.norm(longer, axis=1, keepdims=True))


def config(**sections):
    data = {"source": "files", "label": "y", "classes": None, "features": ["a", "b"]}
    data["silos"] = [{"name": "n", "path": "/n.csv"}]
    return {**REST, "data": data | sections.pop("data", {}), "model": MODEL, **sections}


def test_it_is_registered_by_its_name():
    assert LOSSES["poisson"] is Poisson and ModelConfig(**MODEL).loss == Poisson()


def test_values_and_derivatives_are_those_of_sixty_digits():
    z, y = np.array(PAIRS).T
    value, residual, curvature = np.array([[float(each) for each in exactly(*pair)] for pair in PAIRS]).T
    size = np.exp(np.minimum(z, HELD)) + y * (1.0 + np.abs(z)) + y * np.log(np.maximum(y, 1.0))
    assert (np.abs(Poisson().value(z, y) - value) <= 1e-15 * size).all()
    assert (np.abs(Poisson().residual(z, y) - residual) <= 1e-15 * (np.exp(z) + y)).all()
    np.testing.assert_allclose(Poisson().curvature(z, y), curvature, rtol=1e-15)


@pytest.mark.parametrize("step", [3.0, 1e-3, 1e-9, -1e-14])
def test_a_short_step_costs_no_digit(step):
    for z in SCORES[1:]:  # at the first the change is below the normal numbers
        now = mpmath.exp(mpmath.mpf(z))
        change = now - mpmath.exp(mpmath.mpf(z) - mpmath.mpf(step))
        found = Poisson().residual_change(np.array([z]), np.array([step]), np.ones(1))[0]
        assert found == pytest.approx(float(change), rel=1e-13, abs=0.0)


def test_the_value_is_half_of_a_records_deviance():
    _, y = drawn(0, 300)
    z = np.random.default_rng(1).normal(0.5, 1.0, 300)
    assert 2 * Poisson().value(z, y).mean() == pytest.approx(mean_poisson_deviance(y, np.exp(z)), rel=1e-12)
    np.testing.assert_allclose(Poisson().value(np.log(np.maximum(y, 1e-300)), y), 0.0, atol=1e-14)


def test_beyond_the_held_predictor_the_loss_is_its_tangent():
    z, y = np.array([HELD + 1.0, 2 * HELD, 1e6]), np.array([0.0, 3.0, 5.0])
    steep = math.exp(HELD)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(Poisson().value(z, y), steep * (1.0 + z - HELD), rtol=1e-14)
        np.testing.assert_array_equal(Poisson().residual(z, y), steep)
        np.testing.assert_array_equal(Poisson().curvature(z, y), 0.0)
        across = Poisson().residual_change(z, z - HELD + 1.0, y)  # from one below the held predictor
    np.testing.assert_allclose(across, steep * (1.0 - math.exp(-1.0)), rtol=1e-13)


def test_a_label_below_zero_has_no_value():
    assert np.isnan(Poisson().value(np.zeros(2), np.array([-1.0, -0.5]))).all()


def test_counts_are_the_whole_numbers_from_zero():
    y = np.array([0.0, 1.0, 2.5, -1.0, 1e15, math.nan, math.inf, -0.0])
    assert COUNTS.contains(y).tolist() == [True, True, False, False, True, False, False, True]


@pytest.mark.parametrize(("diameter", "bound"), [(2.0, 1.0), (6.0, 1.0), (3.0, 2.0)])
def test_the_plans_smoothness_is_that_of_the_domain(tmp_path, diameter, bound):
    """exp(D B / 2) B^2 by hand; the record (B, 0) at the edge of the domain has that Hessian."""
    (tmp_path / "n.csv").write_text("a,b,y\n" + "0.5,0.25,1\n" * 40)
    made = config(data={"silos": [{"name": "n", "path": str(tmp_path / "n.csv")}]})
    made["model"] = MODEL | {"diameter": diameter, "feature_bound": bound}
    beta = make_plan(ExperimentConfig.model_validate(made)).problem.objective.smoothness
    assert beta == pytest.approx(math.exp(diameter * bound / 2) * bound**2, rel=1e-12)
    edge = np.array([diameter / 2 * bound])
    assert Poisson().curvature(edge, np.zeros(1))[0] * bound**2 == pytest.approx(beta, rel=1e-12)


def test_rounding_of_a_gradient_is_below_what_the_model_states():
    rng = np.random.default_rng(2)
    for scale in (0.1, 1.0, 5.0):
        X = rng.standard_normal((50, 8))
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        w, y = scale * rng.standard_normal(8), rng.poisson(2.0, 50).astype(float)
        stated = Linear(Poisson()).rounding(w, 1.0)
        for x, label in zip(X, y, strict=True):
            z = mpmath.fsum(mpmath.mpf(a) * mpmath.mpf(b) for a, b in zip(x, w, strict=True))
            off = abs(mpmath.exp(z) - label - float(Poisson().residual(x[None] @ w, np.array([label]))[0]))
            assert off <= stated < 1e-3


def test_training_without_noise_and_clipping_finds_scikit_learns_fit():
    silos, test = {"a": drawn(1, 300), "b": drawn(2, 200)}, drawn(3, 400)
    found = fedcore.train(
        silos,
        test=test,
        classes=None,
        privacy={"trust": "none"},
        model={"loss": {"name": "poisson"}, "clip": 1e6, "diameter": 6.0},
        participation={"weights": "records"},
        algorithm={"name": "mbsgd", "rounds": 1500, "step": 0.3, "average": "last"},
    )
    X, y = (np.concatenate(each) for each in zip(*silos.values(), strict=True))
    fit = PoissonRegressor(alpha=0, fit_intercept=False, tol=1e-10, solver="newton-cholesky").fit(prepared(X), y)
    np.testing.assert_allclose(found.weights, fit.coef_, atol=1e-6)
    np.testing.assert_allclose(found.predict(test[0]), fit.predict(prepared(test[0])), rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"loss": {"name": "poisson"}}}, "loss 'poisson' has no Lipschitz constant: set model.clip"),
        ({"data": {"classes": [0, 1]}}, "loss 'poisson' takes counts 0, 1, 2, ..., and data.classes codes classes"),
        ({"data": {"label_range": [0, 9]}}, "loss 'poisson' takes .* data.label_range maps the label to -1 to 1"),
        ({"model": MODEL | {"hidden": 3}}, "not 'poisson'"),
        ({"model": MODEL | {"smoothing": {"name": "moreau"}}}, "loss 'poisson' is smooth already"),
    ],
)
def test_a_config_that_does_not_fit_counts_names_the_loss(changes, message):
    with pytest.raises(ValueError, match=message):
        ExperimentConfig.model_validate(config(**changes))


@pytest.mark.parametrize("source", ["digits", "regression", "synthetic"])
def test_data_without_counts_are_refused(source):
    with pytest.raises(ValueError, match=f"takes counts 0, 1, 2, ..., and data.source = '{source}' has none"):
        ExperimentConfig.model_validate({"data": {"source": source}, "model": MODEL, **REST})


def test_held_out_evaluation_is_refused_by_the_name_of_the_loss(tmp_path):
    (tmp_path / "n.csv").write_text("a,b,y\n" + "0.5,0.25,1\n" * 40)
    made = config(data={"silos": [{"name": "n", "path": str(tmp_path / "n.csv")}]}, evaluation={"every": "end"})
    with pytest.raises(InputError, match=r"counts classes, and loss 'poisson' takes counts 0, 1, 2, ...: choose"):
        make_plan(ExperimentConfig.model_validate(made))
