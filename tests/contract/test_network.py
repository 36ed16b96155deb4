"""Network of one hidden layer: per-record tensors, closed forms, sensitivity, odd records."""

import dataclasses
import math
import warnings
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import softmax

from fedcore.algorithms import ALGORITHMS, Mbsgd, with_trait
from fedcore.models import OneHiddenLayer, SoftmaxRegression
from fedcore.optim.averaging import Messages

MODEL = OneHiddenLayer(4, 6)


@pytest.fixture(autouse=True)
def no_warnings():
    """Turns warnings into errors: one that depends on a record would reveal it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def sample(model=MODEL, n=30, features=5, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((n, features)), rng.integers(0, model.classes, n).astype(float)
    return X, y, scale * rng.standard_normal(model.weights(features))


def clipped_sum(model, w, X, y, clip):
    return model.clipped_gradient_sum(w, X, y, model.bounds(X, y, clip))


def cut(model, w, features):
    """W1 (hidden, features), W2 (classes, hidden + 1)."""
    first = model.hidden * features
    return w[:first].reshape(model.hidden, features), w[first:].reshape(model.classes, model.hidden + 1)


def tensors(model, w, X, y):
    """All per-record gradients (n, d): every layer as a tensor, no norm by a formula."""
    W1, W2 = cut(model, w, X.shape[1])
    z1 = np.einsum("jk,nk->nj", W1, X)
    h = np.c_[np.where(z1 > 0, z1, 0.0), np.ones(len(X))]
    delta2 = softmax(np.einsum("cj,nj->nc", W2, h), axis=1)
    delta2[np.arange(len(y)), y.astype(int)] -= 1.0
    delta1 = np.einsum("nc,cj->nj", delta2, W2[:, :-1]) * np.sign(h[:, :-1])
    first, second = np.einsum("nj,nk->njk", delta1, X), np.einsum("nc,nj->ncj", delta2, h)
    return np.concatenate([first.reshape(len(X), -1), second.reshape(len(X), -1)], axis=1)


@pytest.mark.parametrize("clip", [0.1, 1.0, 1e300])
@pytest.mark.parametrize("classes, hidden, features", [(2, 1, 1), (3, 8, 4), (10, 40, 21)])
def test_the_sum_is_that_of_clipped_tensors(classes, hidden, features, clip):
    model = OneHiddenLayer(classes, hidden)
    X, y, w = sample(model, 50, features)
    rows = tensors(model, w, X, y)
    norms = np.linalg.norm(rows, axis=1)
    if clip == 1.0:
        assert (norms < clip).any() and (norms > clip).any()
    wanted = (rows * np.minimum(1.0, clip / norms)[:, None]).sum(axis=0)
    np.testing.assert_allclose(clipped_sum(model, w, X, y, clip), wanted, rtol=1e-9, atol=1e-12)


def test_the_weights_of_the_paper():
    assert OneHiddenLayer(10, 200).weights(61) == 14210


# Closed forms


def test_at_zero_only_the_bias_learns():
    X, y, w = sample()
    total = clipped_sum(MODEL, 0 * w, X, y, 10.0)
    W1, W2 = cut(MODEL, total, 5)
    assert not W1.any() and not W2[:, :-1].any()
    np.testing.assert_allclose(W2[:, -1], 30 / 4 - np.bincount(y.astype(int), minlength=4), rtol=1e-12)


def test_scaling_a_unit_up_and_its_outputs_down_changes_nothing():
    """ReLU is homogeneous: outputs ignore that scale, so <w, gradient> agrees on both sides of a unit."""
    X, y, w = sample()
    other = w.copy()
    W1, W2 = cut(MODEL, other, 5)
    W1[2] *= 8.0
    W2[:, 2] /= 8.0
    np.testing.assert_allclose(MODEL.evaluate(other, X, y)[0], MODEL.evaluate(w, X, y)[0], rtol=1e-12)
    (W1, W2), (G1, G2) = cut(MODEL, w, 5), cut(MODEL, clipped_sum(MODEL, w, X, y, 1e9), 5)
    np.testing.assert_allclose((W1 * G1).sum(axis=1), (W2 * G2)[:, :-1].sum(axis=0), rtol=1e-9)


def test_with_all_units_on_it_is_softmax_regression_through_two_factors():
    """z = W2 W1 x: the gradients are A' G and G W1', G the linear model's gradient at A W1 (chain rule)."""
    X, y, w = sample()
    X, (W1, W2) = np.abs(X), cut(MODEL, w, 5)
    W1[:], W2[:, -1] = np.abs(W1), 0.0
    A = W2[:, :-1]
    linear = SoftmaxRegression(4)
    np.testing.assert_allclose(MODEL.evaluate(w, X, y)[0], linear.evaluate((A @ W1).ravel(), X, y)[0], rtol=1e-10)
    G = clipped_sum(linear, (A @ W1).ravel(), X, y, 1e9).reshape(4, 5)
    G1, G2 = cut(MODEL, clipped_sum(MODEL, w, X, y, 1e9), 5)
    np.testing.assert_allclose(G1, A.T @ G, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(G2[:, :-1], G @ W1.T, rtol=1e-9, atol=1e-11)


# Influence of one record


@pytest.mark.parametrize("scale", [0.1, 1.0, 1e3, 1e12])
@pytest.mark.parametrize("clip", [1e-3, 0.5, 1e3])
def test_a_replaced_record_moves_the_sum_by_twice_the_clip_at_most(scale, clip):
    X, y, w = sample(scale=scale)
    loud, worst = np.array([1e6, -1e6, 1e-6, 0.0, 1e300]), 0.0
    whole = clipped_sum(MODEL, w, X, y, clip)
    for i in range(10):
        for x, label in ((X[(i + 7) % 30], y[i]), (-X[i], (y[i] + 1) % 4), (1e5 * X[i], y[i]), (loud, 0.0)):
            other, labels = X.copy(), y.copy()
            other[i], labels[i] = x, label
            worst = max(worst, np.linalg.norm(whole - clipped_sum(MODEL, w, other, labels, clip)))
    assert worst <= 2 * clip * (1 + 1e-9)
    if scale >= 1e3 and clip <= 0.5:
        assert worst > clip  # nearly at the bound, so a larger gradient would be found


def test_no_record_is_above_the_clip_in_exact_arithmetic():
    """By rational numbers: the computed norm and all roundings are compensated."""
    for seed in range(150):
        model = OneHiddenLayer(2 + seed % 3, 1 + seed % 5)
        X, y, w = sample(model, 1, 1 + seed % 4, seed)
        clip = 0.1 * np.random.default_rng(seed).uniform(0.5, 1) * np.linalg.norm(tensors(model, w, X, y))
        total = clipped_sum(model, w, X, y, clip)
        assert sum(Fraction(value) ** 2 for value in total) <= Fraction(clip) ** 2
        assert np.linalg.norm(total) >= clip * (1 - 1e-12)


SPOILT = {
    "nan": ([math.nan, 0, 0, 0, 0], 0.0),
    "inf": ([0, 0, math.inf, 0, 0], 1.0),
    "-inf": ([0, -math.inf, 0, 0, 0], 1.0),
    "huge": ([1e308] * 5, 2.0),
    "square": ([0, 1e200, 0, 0, 0], 2.0),
    "both": ([1e308, -1e308, 1e308, 0, 0], 0.0),
    "label": ([1, 1, 1, 1, 1], 4.0),
    "half": ([1, 1, 1, 1, 1], 0.5),
    "no label": ([1, 1, 1, 1, 1], math.nan),
    "far label": ([1, 1, 1, 1, 1], -1e300),
}


@pytest.mark.parametrize("name", SPOILT)
@pytest.mark.parametrize("scale", [1.0, 1e12])
def test_a_record_that_is_no_number_adds_exactly_nothing(name, scale):
    X, y, w = sample(scale=scale)
    bounds = MODEL.bounds(X, y, 0.5)
    bounds[11] = 0.0
    wanted = MODEL.clipped_gradient_sum(w, X, y, bounds)  # the others alone, in their places
    X[11], y[11] = SPOILT[name]
    np.testing.assert_array_equal(clipped_sum(MODEL, w, X, y, 0.5), wanted)
    assert np.isfinite(wanted).all() and wanted.any()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", [0, -1])
def test_weights_that_are_no_numbers_give_a_finite_sum(value, where):
    X, y, w = sample()
    w[where] = value
    total = clipped_sum(MODEL, w, X, y, 0.5)
    assert np.isfinite(total).all()
    if math.isnan(value):
        np.testing.assert_array_equal(total, np.zeros(len(w)))


@pytest.mark.parametrize("scale", [1e80, 1e155, 1e200, 1e307])
def test_weights_that_overflow_spoil_nothing(scale):
    X, y, w = sample(scale=scale)
    total = clipped_sum(MODEL, w, X, y, 0.5)
    assert np.isfinite(total).all() and np.linalg.norm(total) <= 30 * 0.5 * (1 + 1e-9)


@pytest.mark.parametrize("size", [1e-150, 1e-158, 1e-162, 1e-170])
def test_a_record_whose_square_vanishes_is_clipped_all_the_same(size):
    """p_1 = exp(-120) = 1e-52 before weights of 1e200: |delta1| = 1.5e148, far above |delta2| even times such an x."""
    model, w = OneHiddenLayer(2, 1), np.array([1e-110, 1e200, 120.0, -1e200, 0.0])
    assert np.log10(2 * math.exp(-120)) + 200 + np.log10(size) > -40
    total = clipped_sum(model, w, np.array([[size]]), np.zeros(1), 1e-40)
    assert 0 < math.hypot(*total) <= 1e-40


@pytest.mark.parametrize("clip", [1e-20, 1e-18, 1e-17, 1e-16, 1e-10])
def test_a_factor_next_to_nothing_is_rounded_down(clip):
    """A norm of 1e303: clip over it has few digits left, or none, and must not be rounded up."""
    w = np.array([1.0, 1e150, 0.0, -1e150, 0.0])
    for size in np.linspace(1e153, 1.2e153, 40):
        total = clipped_sum(OneHiddenLayer(2, 1), w, np.array([[size]]), np.ones(1), clip)
        assert sum(Fraction(value) ** 2 for value in total) <= Fraction(clip) ** 2


@pytest.mark.parametrize("clip", [5e-324, 1e-200, 1e-101])
def test_a_clip_next_to_nothing_lets_nothing_through(clip):
    X, y, w = sample()
    assert not clipped_sum(MODEL, w, X, y, clip).any()
    assert 0 < np.linalg.norm(clipped_sum(MODEL, w, X, y, 1e-90)) <= 30e-90


# Masked records


def test_masked_records_add_exactly_nothing_whatever_they_are():
    X, y, w = sample(scale=1e3)
    bounds = MODEL.bounds(X, y, 0.5)
    mask = np.random.default_rng(1).random(30) < 0.5
    bounds[mask] = 0.0
    wanted = MODEL.clipped_gradient_sum(w, X, y, bounds)
    assert wanted.any()
    for value in (0.0, 7.0, 1e308, math.nan, -math.inf):
        other = X.copy()
        other[mask] = value
        np.testing.assert_array_equal(MODEL.clipped_gradient_sum(w, other, y, bounds), wanted)
    np.testing.assert_allclose(wanted, clipped_sum(MODEL, w, X[~mask], y[~mask], 0.5), rtol=1e-9, atol=1e-12)
    assert not MODEL.clipped_gradient_sum(w, X, y, 0 * bounds).any()


def test_no_records_sum_to_zero():
    _, _, w = sample()
    total = clipped_sum(MODEL, w, np.empty((0, 5)), np.empty(0), 0.5)
    np.testing.assert_array_equal(total, np.zeros(MODEL.weights(5)))


# Methods that train it

QUICK = {"localized-mbsgd": {"rounds": (4, 3), "lam": 0.1, "max_phases": 2, "step": 0.5}}


@pytest.mark.parametrize("name", [name for name in with_trait("takes_nonconvex") if len(ALGORITHMS[name].asks) == 1])
def test_one_silo_is_the_centralised_method(name, federate):
    """The method's own server side, with means of materialised, clipped gradients at the plan's positions."""
    method = ALGORITHMS[name](**QUICK.get(name, {"rounds": 5}))
    if ALGORITHMS[name].several_answers:
        method = dataclasses.replace(method, sampling_rate=1.0)
    X, y, _ = sample()
    w0 = MODEL.start(5, np.random.default_rng(3))
    federation = federate(method, {"only": (X, y)}, epsilon=None, clip=0.7, loss=MODEL, smoothness=math.inf, ridge=0.05)
    approved = federation.silos["only"]._runs["run"]
    order = [int(np.flatnonzero((row == X).all(axis=1))[0]) for row in approved.X]
    state = method.init(w0)
    for phase in federation.plan.phases:
        for round in range(1, phase.rounds + 1):
            event = phase.event("only", round)
            part = order[event.start : event.stop]

            def ask(kind, w, part=part):
                rows = tensors(MODEL, w, X[part], y[part])
                rows *= np.minimum(1.0, 0.7 / np.linalg.norm(rows, axis=1))[:, None]
                return rows.mean(axis=0)

            sent = {key: array.reshape(-1, w0.size)[0] for key, array in method.broadcast(state, phase).items()}
            silo = SimpleNamespace(ridge=0.05, ask=ask)
            state = method.server_update(state, Messages({0: method.silo_step(sent, silo)}), phase)
    found = federation.final(method.init(w0))
    np.testing.assert_allclose(found, method.output(state), rtol=1e-9, atol=1e-11)
    assert np.linalg.norm(found - w0) > 0.1


@pytest.mark.parametrize("batch", [None, 9])
def test_extreme_records_change_no_outcome(federate, batch):
    X, y, _ = sample()
    X[0], X[1], X[2], y[3], y[4] = np.nan, 1.7e308, 5e-324, np.nan, 7.0
    federation = federate(
        Mbsgd(rounds=4, step=50.0, batch=batch),
        {"a": (X, y), "b": (X[::-1], y[::-1])},
        loss=MODEL,
        diameter=1e3,
        smoothness=math.inf,
    )
    start = federation.context.method.init(MODEL.start(5, np.random.default_rng(3)))
    for _, releases, _ in federation.play(start):
        assert all(np.isfinite(release.payload).all() for release in releases)
