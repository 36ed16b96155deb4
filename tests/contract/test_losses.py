"""Every registered loss: derivatives, convexity and stated constants; then its clipped sum."""

import math
import warnings
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from fedcore.losses import LOSSES, Absolute, Convolution, Hinge, Huber, Moreau, Quantile, Smoothable
from fedcore.models.linear import Linear, clipped_gradient_sum, residual_bounds, row_norms
from fedcore.models.model_config import ModelConfig
from tests.contract.drawn_labels import drawn, nearest

NAMED = [loss() for loss in LOSSES.values()] + [Huber(width=0.2), Huber(width=3.0), Quantile(tau=0.1)]
KINKED = [loss for loss in NAMED if isinstance(loss, Smoothable)]
SMOOTHED = [Moreau(loss=loss, weight=weight) for loss in KINKED for weight in (0.3, 2.0)]
BALLS = ((1.5, 1), (0.8, 3), (4.0, 20))
SMOOTHED += [Convolution(loss=loss, reach=reach, dim=d) for loss in KINKED for reach, d in BALLS]
CASES = NAMED + SMOOTHED


@pytest.fixture(params=CASES, ids=str)
def loss(request):
    return request.param


def points(loss, count=4000, seed=0, scale=4.0):
    rng = np.random.default_rng(seed)
    z, a = scale * rng.standard_normal((2, count))
    return z, a, drawn(loss.labels, rng, count)


def test_residual_is_the_derivative_of_value(loss):
    z, _, y = points(loss)
    h = 1e-5
    numeric = (loss.value(z + h, y) - loss.value(z - h, y)) / (2 * h)
    size = np.maximum(1.0, loss.curvature(z, y))  # a kink of the derivative costs h/2
    assert (np.abs(loss.residual(z, y) - numeric) <= 1e-5 * size).all()
    assert np.median(np.abs(loss.residual(z, y) - numeric)) < 1e-9


def test_curvature_is_the_derivative_of_residual(loss):
    z, _, y = points(loss)
    h = 1e-6
    numeric = (loss.residual(z + h, y) - loss.residual(z - h, y)) / (2 * h)
    wrong = np.abs(loss.curvature(z, y) - numeric) > 1e-7 * np.maximum(1.0, loss.curvature(z, y))
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
    for reach in (1.0, 3.0, np.abs([a, b]).max()):
        smoothness, near = loss.smoothness_within(reach), np.maximum(np.abs(a), np.abs(b)) <= reach
        rounding = 1e-14 * max(1.0, loss.residual_error(reach) * 2.0**40)
        assert (difference <= smoothness * np.abs(a - b) * slack + rounding)[near].all()
        assert (loss.curvature(a, y) <= smoothness * slack)[near].all()
        assert smoothness <= loss.smoothness


def test_stated_constants_are_reached(loss):
    """A constant that is larger than necessary would cost noise."""
    a, _, y = points(loss, 20_000, 4, scale=50.0)
    if math.isfinite(loss.lipschitz):
        assert np.abs(loss.residual(a, y)).max() > 0.999 * loss.lipschitz
    if not isinstance(loss, Smoothable):
        for reach in (np.abs(a).max(), loss.labels.pair[1]):
            z = np.concatenate([a, y, 0 * y, np.full(a.shape, reach)])
            bent = np.where(np.abs(z) <= reach, loss.curvature(z, np.tile(y, 4)), 0.0)
            assert bent.max() > 0.999 * loss.smoothness_within(reach)
    else:  # no number would do: the derivative jumps
        z = y[:, None] + 1e-9 * np.array([-1.0, 1.0])
        assert (np.diff(loss.residual(z, y[:, None])) > 0.1).all()


def test_a_change_of_the_residual_is_accurate_to_its_own_digits(loss):
    """A long step against the subtraction, a short one against the curvature there.

    At 1e-12 the subtraction of two residuals has an error of 1e-4 of the step.
    """
    z, _, y = points(loss, 4000, 5)
    step = np.random.default_rng(6).standard_normal(z.size)
    subtracted = loss.residual(z, y) - loss.residual(z - step, y)
    size = 1.0 + np.abs(loss.residual(z, y)) + np.abs(loss.residual(z - step, y))
    rounding = 1e-14 + 2 * loss.residual_error(20.0)
    assert (np.abs(loss.residual_change(z, step, y) - subtracted) <= rounding * size).all()
    short = 1e-12 * np.sign(step)
    slope = loss.curvature(z - short / 2, y)
    allowed = 1e-6 * np.maximum(1e-3, slope) * 1e-12
    if isinstance(loss, Convolution):  # a subtraction of probabilities, as it states
        allowed += 4e-15 * loss.loss.jump
    wrong = np.abs(loss.residual_change(z, short, y) - slope * short) > allowed
    assert wrong.sum() <= 1  # a point within the step of a kink


@pytest.mark.parametrize("loss", NAMED, ids=str)
def test_the_curvature_changes_by_its_stated_constant_and_no_less(loss):
    """Newton steps are certified by this constant: a small one is false, a large one costs steps."""
    a, b, y = points(loss, 20_000, 7)
    for reach in (1.0, 10.0):
        bound = loss.curvature_lipschitz_within(reach)
        if math.isinf(bound):
            assert bound == loss.curvature_lipschitz
            continue
        near = np.maximum(np.abs(a), np.abs(b)) <= reach
        change = np.abs(loss.curvature(a, y) - loss.curvature(b, y))
        assert (change <= bound * np.abs(a - b) * (1 + 1e-9) + 1e-13)[near].all()
        z = np.linspace(-reach, reach, 20_001)
        label = np.full(z.shape, loss.labels.pair[1])
        steepest = np.abs(np.diff(loss.curvature(z, label)) / np.diff(z)).max()
        assert steepest >= 0.99 * bound or reach < 10.0


def test_far_away_nothing_overflows(loss):
    z = np.array([-1e4, 1e4, -1e4, 1e4, 0.0])
    low, high = loss.labels.pair
    y = np.array([high, high, low, low, high])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value, residual, curvature = loss.value(z, y), loss.residual(z, y), loss.curvature(z, y)
    assert np.isfinite([value, residual, curvature]).all()
    if math.isfinite(loss.lipschitz):
        assert value.max() == pytest.approx(1e4 * loss.lipschitz, rel=1e-2)


def test_no_record_raises(loss):
    """A silo calls with warnings off; an exception would be an outcome that depends on a record."""
    hard = [0.0, 1.0, 1e200, 1.7e308, math.inf, math.nan]
    z, dz, y = (side.ravel() for side in np.meshgrid(*3 * [[*hard, *(-each for each in hard)]]))
    with np.errstate(all="ignore"):
        found = [loss.value(z, y), loss.residual(z, y), loss.residual_change(z, dz, y), loss.curvature(z, y)]
    assert all(each.shape == z.shape for each in found)


def test_arguments_are_left_alone(loss):
    z, _, y = points(loss, 50)
    copies = z.copy(), y.copy()
    for call in (loss.value, loss.residual, loss.curvature):
        assert call(z, y).shape == (50,) and call(z, y).dtype == np.float64
        np.testing.assert_array_equal((z, y), copies)


@pytest.mark.parametrize("loss", NAMED, ids=str)
def test_a_loss_without_lipschitz_constant_needs_a_clip(loss):
    config = {"loss": {"name": loss.name}, "feature_bound": 2.0}
    if math.isfinite(loss.lipschitz):
        assert ModelConfig(loss=loss, feature_bound=2.0).gradient_bound == 2.0 * loss.lipschitz
    else:
        with pytest.raises(ValueError, match=r"set model\.clip"):
            ModelConfig(**config)
    assert ModelConfig(**config, clip=0.3).gradient_bound == 0.3


# Losses with a kink, and their smoothed forms

anywhere = st.floats(-50, 50)


@given(st.sampled_from(NAMED), anywhere, anywhere, anywhere)
def test_the_residual_is_a_subgradient_also_at_a_kink(loss, z, other, y):
    y = nearest(loss.labels, y)
    at, to, label = np.array([z, y]), np.array([other, other]), np.array([y, y])
    below = loss.value(at, label) + loss.residual(at, label) * (to - at)
    assert (loss.value(to, label) >= below - 1e-12 * (1 + np.abs(below))).all()


def test_losses_with_a_kink_by_hand():
    y = np.array([1.0, 1, 1, -1, -1])
    z = np.array([0.25, 1, 3, 0.25, -2])
    np.testing.assert_array_equal(Hinge().value(z, y), [0.75, 0, 0, 1.25, 0])
    np.testing.assert_array_equal(Hinge().residual(z, y), [-1, 0, 0, 1, 0])
    np.testing.assert_array_equal(Absolute().value(z, 2 * y), [1.75, 1, 1, 2.25, 0])
    np.testing.assert_array_equal(Absolute().residual(z, 2 * y), [-1, -1, 1, 1, 0])
    np.testing.assert_allclose(Quantile(tau=0.9).value(z, 2 * y), [1.575, 0.9, 0.1, 0.225, 0], rtol=1e-14)
    np.testing.assert_allclose(Quantile(tau=0.9).residual(z, 2 * y), [-0.9, -0.9, 0.1, 0.1, 0], rtol=1e-14)
    assert [loss.lipschitz for loss in (Hinge(), Absolute(), Quantile(tau=0.9), Quantile(tau=0.3))] == [1, 1, 0.9, 0.7]


@pytest.mark.parametrize("tau", [0.0, 1.0, -0.5, math.nan])
def test_quantile_wants_a_level_between_0_and_1(tau):
    with pytest.raises(ValueError, match="tau"):
        Quantile(tau=tau)


@given(st.sampled_from(KINKED), st.floats(0.05, 20), st.floats(-8, 8), st.floats(-8, 8))
def test_moreau_is_its_stated_minimum(loss, weight, z, y):
    """Value and prox against a numeric minimisation, derivative against the quadratic's slope there."""
    y = nearest(loss.labels, y)
    envelope, at, label = Moreau(loss=loss, weight=weight), np.array([z]), np.array([y])

    def objective(u):
        return float(loss.value(np.array([u]), label)[0]) + weight / 2 * (z - u) ** 2

    # The kink may be the minimiser, and an interval search only approaches it: try its two sides and the point itself.
    edges = [z - 1.001 / weight, z + 1.001 / weight]
    edges = sorted({*edges, min(max(y, edges[0]), edges[1])})
    found = [(objective(u), u) for u in edges]
    for low, high in pairwise(edges):
        if high > low:
            side = minimize_scalar(objective, bounds=(low, high), method="bounded", options={"xatol": 1e-11})
            found.append((side.fun, side.x))
    best, where = min(found)
    assert envelope.value(at, label)[0] == pytest.approx(best, abs=1e-9)
    assert envelope.prox(at, label)[0] == pytest.approx(where, abs=1e-4 / math.sqrt(weight))
    assert objective(envelope.prox(at, label)[0]) == pytest.approx(best, abs=1e-9)
    assert envelope.residual(at, label)[0] == pytest.approx(weight * (z - envelope.prox(at, label)[0]), abs=1e-10)


def test_moreau_of_a_hinge_is_the_specs_gradient_of_a_record_of_largest_norm():
    """Spec 7.4: t = clip((1 - <a, w>)/|a|^2, 0, 1/b), gradient -b t a with a = y x.

    Here |x| = feature_bound = 2.
    """
    rng, b = np.random.default_rng(8), 3.0
    X, w = rng.standard_normal((200, 3)), rng.standard_normal(3)
    X *= 2 / np.linalg.norm(X, axis=1)[:, None]
    y = np.where(rng.random(200) < 0.5, -1.0, 1.0)
    a = y[:, None] * X
    t = np.clip((1 - a @ w) / 4, 0, 1 / b)
    wanted = -b * t[:, None] * a
    found = Moreau(loss=Hinge(), weight=b / 4).residual(X @ w, y)[:, None] * X
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)
    assert 0 < (t == 0).sum() < 200 and (t == 1 / b).any() and ((t > 0) & (t < 1 / b)).any()
    # The absolute loss: t = clip((<x, w> - y)/|x|^2, -1/b, 1/b), gradient b t x.
    t = np.clip((X @ w - 3 * y) / 4, -1 / b, 1 / b)
    found = Moreau(loss=Absolute(), weight=b / 4).residual(X @ w, 3 * y)
    np.testing.assert_allclose(found, b * t, rtol=1e-12, atol=1e-14)


def test_moreau_of_the_absolute_loss_is_hubers():
    z, _, y = points(Absolute())
    envelope, huber = Moreau(loss=Absolute(), weight=4.0), Huber(width=0.25)
    np.testing.assert_allclose(envelope.value(z, y), 4 * huber.value(z, y), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(envelope.residual(z, y), 4 * huber.residual(z, y), rtol=1e-12)


@pytest.mark.parametrize("loss", SMOOTHED, ids=str)
def test_a_smoothed_loss_is_near_the_loss_and_the_gap_is_reached(loss):
    z, _, y = points(loss, 20_000)
    z[0] = y[0]  # the kink is where a convolution is furthest away
    below = loss.loss.value(z, y) - loss.value(z, y)
    if isinstance(loss, Convolution):
        below = -below
    assert (below >= -1e-12).all() and (below <= loss.gap + 1e-12).all()
    assert below.max() > 0.999 * loss.gap


@pytest.mark.parametrize("d", [1, 2, 7])
@pytest.mark.parametrize("loss", KINKED, ids=str)
def test_convolution_is_the_mean_over_a_ball(loss, d):
    """Value and gradient against 400,000 draws from the ball of R^d; constants against the paper's."""
    s, rng = 0.6, np.random.default_rng(9)
    v = rng.standard_normal((400_000, d))
    v *= s * rng.random(len(v))[:, None] ** (1 / d) / np.linalg.norm(v, axis=1)[:, None]
    x = rng.standard_normal(d)
    x *= 2 / np.linalg.norm(x)
    smoothed = Convolution(loss=loss, reach=s * 2, dim=d)
    for y in (1.0, -1.0):
        for w in (0.3 * x, -0.1 * x, 0.9 * x):
            z = (w + v) @ x
            label = np.full(len(z), y)
            at = np.array([w @ x]), np.array([y])
            assert loss.value(z, label).mean() == pytest.approx(smoothed.value(*at)[0], abs=0.01)
            assert loss.residual(z, label).mean() == pytest.approx(smoothed.residual(*at)[0], abs=0.01)
    L = loss.lipschitz * 2
    assert smoothed.gap <= L * s
    assert smoothed.smoothness * 2**2 <= L * math.sqrt(d) / s * (1 + 1e-12)


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


def test_evaluation_of_a_linear_model():
    X, y = np.array([[1.0, 0], [0, 1], [2, 0], [0, 0]]), np.array([1.0, -1, -1, 1])
    w = np.array([1.0, -3.0])  # z = 1, -3, 2, 0: right, right, wrong, and 0 counts as +1
    losses, wrong = Linear(LOSSES["logistic"]()).evaluate(w, X, y)
    assert wrong.tolist() == [False, False, True, False]
    by_hand = [math.log1p(math.exp(-1)), math.log1p(math.exp(-3)), math.log1p(math.exp(2)), math.log(2)]
    assert losses == pytest.approx(by_hand, rel=1e-14)
    smoothed, unsigned = Linear(Moreau(loss=Absolute(), weight=2.0)).evaluate(w, X, y)
    assert smoothed.tolist() == [0.0, 2.0, 3.0, 1.0] and unsigned is None
