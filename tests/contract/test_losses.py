"""Every registered loss: derivatives, convexity and the constants it states; then the clipped sum over each of them."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.config import ModelConfig
from fedcore.losses import LOSSES, Huber
from fedcore.models.linear import clipped_gradient_sum, error_rate, mean_loss, residual_bounds, row_norms

CASES = [loss() for loss in LOSSES.values()] + [Huber(width=0.2), Huber(width=3.0)]


@pytest.fixture(params=CASES, ids=str)
def loss(request):
    return request.param


def points(loss, count=4000, seed=0, scale=4.0):
    rng = np.random.default_rng(seed)
    z, a = scale * rng.standard_normal((2, count))
    y = np.where(rng.random(count) < 0.5, -1.0, 1.0) if loss.binary else 2 * rng.standard_normal(count)
    return z, a, y


def test_residual_is_the_derivative_of_value(loss):
    z, _, y = points(loss)
    h = 1e-5
    numeric = (loss.value(z + h, y) - loss.value(z - h, y)) / (2 * h)
    np.testing.assert_allclose(loss.residual(z, y), numeric, atol=1e-5)  # a kink of the derivative costs h/2
    assert np.median(np.abs(loss.residual(z, y) - numeric)) < 1e-9


def test_curvature_is_the_derivative_of_residual(loss):
    z, _, y = points(loss)
    h = 1e-6
    numeric = (loss.residual(z + h, y) - loss.residual(z - h, y)) / (2 * h)
    wrong = np.abs(loss.curvature(z, y) - numeric) > 1e-7
    assert wrong.sum() <= 1  # a point within h of a kink


def test_value_is_convex_and_not_negative(loss):
    a, b, y = points(loss, 20_000, 1)
    t = np.random.default_rng(2).random(a.size)
    chord = t * loss.value(a, y) + (1 - t) * loss.value(b, y)
    assert (loss.value(t * a + (1 - t) * b, y) <= chord + 1e-12 * (1 + chord)).all()
    assert (loss.value(a, y) >= 0).all()
    assert (loss.curvature(a, y) >= 0).all()


def test_stated_constants_hold(loss):
    a, b, y = points(loss, 20_000, 3)
    slack = 1 + 1e-12
    assert (np.abs(loss.residual(a, y)) <= loss.lipschitz * slack).all()
    assert (np.abs(loss.value(a, y) - loss.value(b, y)) <= loss.lipschitz * np.abs(a - b) * slack + 1e-12).all()
    difference = np.abs(loss.residual(a, y) - loss.residual(b, y))
    assert (difference <= loss.smoothness * np.abs(a - b) * slack + 1e-15).all()
    assert (loss.curvature(a, y) <= loss.smoothness * slack).all()


def test_stated_constants_are_reached(loss):
    """A constant that is larger than need be would buy noise for nothing."""
    a, _, y = points(loss, 20_000, 4, scale=50.0)
    if math.isfinite(loss.lipschitz):
        assert np.abs(loss.residual(a, y)).max() > 0.999 * loss.lipschitz
    assert loss.curvature(np.concatenate([a, y, 0 * y]), np.tile(y, 3)).max() > 0.999 * loss.smoothness


def test_far_away_nothing_overflows(loss):
    z = np.array([-1e4, 1e4, -1e4, 1e4, 0.0])
    y = np.array([1.0, 1.0, -1.0, -1.0, 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value, residual, curvature = loss.value(z, y), loss.residual(z, y), loss.curvature(z, y)
    assert np.isfinite([value, residual, curvature]).all()
    if math.isfinite(loss.lipschitz):
        assert value.max() == pytest.approx(1e4 * loss.lipschitz, rel=1e-2)


def test_arguments_are_left_alone(loss):
    z, _, y = points(loss, 50)
    kept = z.copy(), y.copy()
    for call in (loss.value, loss.residual, loss.curvature):
        assert call(z, y).shape == (50,) and call(z, y).dtype == np.float64
        np.testing.assert_array_equal((z, y), kept)


def test_a_loss_without_lipschitz_constant_needs_a_clip(loss):
    config = {"loss": {"name": loss.name}, "feature_bound": 2.0}
    if math.isfinite(loss.lipschitz):
        assert ModelConfig(loss=loss, feature_bound=2.0).gradient_bound == 2.0 * loss.lipschitz
    else:
        with pytest.raises(ValueError, match=r"set model\.clip"):
            ModelConfig(**config)
    assert ModelConfig(**config, clip=0.3).gradient_bound == 0.3


# Clipped sums


def naive_sum(loss, w, X, y, clip):
    total = np.zeros(X.shape[1])
    for x, label in zip(X, y, strict=True):
        g = loss.residual(np.array([x @ w]), np.array([label]))[0] * x
        total += g * min(1.0, clip / max(float(np.linalg.norm(g)), 1e-300))
    return total


@pytest.mark.parametrize("clip", [1e-3, 0.5, 1e9])
def test_clipped_sum_is_the_sum_of_clipped_gradients(loss, clip):
    rng = np.random.default_rng(6)
    X = rng.standard_normal((40, 5)) * np.logspace(-6, 3, 40)[:, None]
    X[7] = 0.0
    y = np.where(rng.random(40) < 0.5, -1.0, 1.0)
    w = rng.standard_normal(5)
    found = clipped_gradient_sum(loss, w, X, y, residual_bounds(X, clip))
    np.testing.assert_allclose(found, naive_sum(loss, w, X, y, clip), rtol=1e-10, atol=1e-13 * clip)


entry = st.floats(-1e308, 1e308) | st.sampled_from([0.0, 1e-310, -5e-324, 1.0, -1.0, 1e154, -1.7e308])
finite_row = st.lists(entry, min_size=3, max_size=3)
weights = st.lists(st.floats(-1e12, 1e12), min_size=3, max_size=3)


@given(finite_row, weights, st.sampled_from([1.0, -1.0, 1e300, -1e300]), st.sampled_from(CASES))
def test_no_finite_record_gets_past_the_clip(x, w, y, loss):
    X, bound = np.array([x]), 0.5
    with np.errstate(all="ignore"):
        total = clipped_gradient_sum(loss, np.array(w), X, np.array([y]), residual_bounds(X, bound))
    assert np.isfinite(total).all()
    assert math.hypot(*total) <= bound * (1 + 1e-6)


def test_a_record_whose_residual_is_not_a_number_adds_nothing(loss):
    X, labels, w = np.array([[0.3, 0.4], [1, 2], [-1, 2]]), np.array([1.0, np.nan, -1]), np.array([0.5, -0.25])
    found = clipped_gradient_sum(loss, w, X, labels, residual_bounds(X, 0.5))
    np.testing.assert_allclose(found, naive_sum(loss, w, X[[0, 2]], labels[[0, 2]], 0.5), rtol=1e-12)


@given(finite_row)
def test_row_norms_neither_overflow_nor_vanish(x):
    found, wanted = row_norms(np.array([x]))[0], math.hypot(*x)
    assert found == wanted or found == pytest.approx(wanted, rel=1e-14, abs=1e-323)


def test_mean_loss_and_error_rate():
    X, y = np.array([[1.0, 0], [0, 1], [2, 0], [0, 0]]), np.array([1.0, -1, -1, 1])
    w = np.array([1.0, -3.0])  # z = 1, -3, 2, 0: right, right, wrong, and 0 counts as +1
    assert error_rate(w, X, y) == 0.25
    by_hand = [math.log1p(math.exp(-1)), math.log1p(math.exp(-3)), math.log1p(math.exp(2)), math.log(2)]
    assert mean_loss(LOSSES["logistic"](), w, X, y) == pytest.approx(sum(by_hand) / 4, rel=1e-14)
