"""Silos of one site that are summed together have the bits that each has alone."""

from __future__ import annotations

import numpy as np
import pytest

from fedcore.accounting.events import GaussianRelease
from fedcore.algorithms import ALGORITHMS
from fedcore.losses import Absolute, Hinge, Huber, Logistic, Moreau, Squared
from fedcore.models import Linear, OneHiddenLayer, RegressionNetwork, SoftmaxRegression, linear
from fedcore.silo.answers import Gradient, Moments, Shard
from fedcore.silo.columns.group import Stack

LOSSES = {
    "logistic": Logistic(),
    "squared": Squared(),
    "huber": Huber(),
    "absolute": Absolute(),
    "hinge": Hinge(),
    "moreau": Moreau(loss=Hinge(), weight=2.0),
}
SIZES = (1, 2, 3, 7, 56, 57, 400, 64, 1, 33)


def parts(d: int = 65, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Records (n, d), labels and clipping bounds of silos of `SIZES`; views into larger arrays, as shards are."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(sum(SIZES) + 5, d))
    y = np.where(rng.random(len(X)) < 0.5, -1.0, 1.0)
    bounds, found, start = linear.residual_bounds(X, 2.0), [], 5
    for n in SIZES:
        found.append((X[start : start + n], y[start : start + n], bounds[start : start + n]))
        start += n
    return found


@pytest.mark.parametrize("cached", [1, 2**12, 2**19, 2**30], ids=["alone", "small", "usual", "all"])
@pytest.mark.parametrize("loss", list(LOSSES))
def test_sums_in_one_pass_are_those_of_each_alone(loss, cached, monkeypatch):
    monkeypatch.setattr(linear, "CACHED", cached)
    model, w = Linear(LOSSES[loss]), np.random.default_rng(1).normal(size=65)
    sums = model.clipped_gradient_sums(parts())
    for at in (w, 1e-3 * w, np.zeros(65), w):
        for total, (X, y, bounds) in zip(sums(at), parts(), strict=True):
            assert total.tobytes() == model.clipped_gradient_sum(at, X, y, bounds).tobytes()


def test_a_silo_whose_residual_is_not_a_number_spoils_no_other():
    given, w = parts(), np.random.default_rng(1).normal(size=65)
    given[4][1][3] = np.nan
    model = Linear(Logistic())
    for total, (X, y, bounds) in zip(model.clipped_gradient_sums(given)(w), given, strict=True):
        assert np.isfinite(total).all()
        assert total.tobytes() == model.clipped_gradient_sum(w, X, y, bounds).tobytes()
    kept = np.arange(56) != 3
    # By hand: the record whose label is not a number is left out.
    (X, y, bounds), alone = given[4], model.clipped_gradient_sums(given)(w)[4]
    np.testing.assert_allclose(alone, model.clipped_gradient_sum(w, X[kept], y[kept], bounds[kept]), rtol=1e-12)


@pytest.mark.parametrize("loss", list(LOSSES))
def test_evaluations_in_one_pass_are_those_of_each_alone(loss):
    model, w = Linear(LOSSES[loss]), np.random.default_rng(2).normal(size=65)
    given = [(X, y) for X, y, _ in parts()]
    for (losses, wrong), (X, y) in zip(model.evaluate_parts(w, given), given, strict=True):
        alone, alone_wrong = model.evaluate(w, X, y)
        np.testing.assert_array_equal(losses, alone)
        assert (wrong is None and alone_wrong is None) or (wrong == alone_wrong).all()


@pytest.mark.parametrize("model", [SoftmaxRegression(3), OneHiddenLayer(3, 4), RegressionNetwork(4)])
def test_models_without_a_pass_are_evaluated_one_by_one(model):
    rng = np.random.default_rng(3)
    w, given = rng.normal(size=model.weights(5)), [(rng.normal(size=(n, 5)), np.zeros(n)) for n in (4, 9)]
    assert model.clipped_gradient_sums([(X, y, y) for X, y in given]) is None
    for (losses, _), (X, y) in zip(model.evaluate_parts(w, given), given, strict=True):
        np.testing.assert_array_equal(losses, model.evaluate(w, X, y)[0])


def stack(sampling: str = "full", answers=(Gradient, Gradient)) -> Stack | None:
    rng, made = np.random.default_rng(4), {}
    event = GaussianRelease(0, 6, 1.0, 1.0, sampling=sampling, rate=1.0 if sampling == "full" else 0.5)
    for name, kind in zip(("ash", "birch"), answers, strict=True):
        X, y = rng.normal(size=(6, 3)), np.ones(6)
        bounds = linear.residual_bounds(X, 1.0)
        answer = kind() if kind is Moments else Gradient(Linear(Logistic()), bounds, None, None, 1.0, 10.0, 1.0)
        made[name] = (answer, Shard(event, slice(0, 6), X, y, 6.0, 1.0, None))
    return Stack.of(made)


@pytest.mark.parametrize("sampling", ["poisson", "without-replacement"])
def test_samples_are_summed_alone(sampling):
    assert stack(sampling) is None


def test_moments_and_answers_of_two_kinds_are_summed_alone():
    assert stack(answers=(Moments, Moments)) is None
    assert stack(answers=(Gradient, Moments)) is None


def test_a_model_out_of_reach_is_left_to_each_silo():
    w = np.full(3, 100.0)
    assert stack().sums(w) is None


def test_a_method_cannot_change_what_the_next_silo_is_asked(federate, toy, monkeypatch):
    from fedcore.errors import SiloError

    method = ALGORITHMS["mbsgd"](rounds=1)

    def meddle(self, sent, silo):
        sent["w"][0] = 1.0
        return silo.ask("gradient", sent["w"])

    monkeypatch.setattr(type(method), "silo_step", meddle)
    with pytest.raises(SiloError, match="it could not answer"):
        list(federate(method, toy).play())
