"""Clipped sums of differences of gradients for every model, against brute force in sixty digits."""

import dataclasses
import itertools
import math
import warnings
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.losses import Absolute, Convolution, Hinge, Huber, Logistic, Moreau, Poisson, Quantile, Softmax, Squared
from fedcore.models import Classifier, Linear, Network, OneHiddenLayer, RegressionNetwork, SoftmaxRegression
from fedcore.models.network_difference import ROUGH
from tests.contract.drawn_labels import drawn

SMOOTH = [
    Linear(Logistic()),
    Linear(Squared()),
    Linear(Poisson()),
    Linear(Huber(width=0.7)),
    Linear(Moreau(loss=Hinge(), weight=0.8)),
    *(SoftmaxRegression(classes) for classes in (2, 3, 10)),
    *(OneHiddenLayer(classes, hidden, kind) for kind in ("relu", "softplus") for classes, hidden in ((2, 1), (3, 5))),
    *(RegressionNetwork(4, kind, loss) for kind in ("relu", "softplus") for loss in (Squared(), Huber(width=0.7))),
]
MODELS = [
    *SMOOTH,
    Linear(Hinge()),
    Linear(Absolute()),
    Linear(Quantile(tau=0.3)),
    Linear(Convolution(loss=Absolute(), reach=0.8, dim=4)),
]
STEPS = [1.0, 1e-3, 1e-6, 1e-10, 1e-14]
FEATURES = 4


@pytest.fixture(autouse=True)
def no_warnings():
    """Turns warnings into errors: one that depends on a record would reveal it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture(params=MODELS, ids=str)
def model(request):
    return request.param


def sample(model, n=8, seed=0, step=1.0, scale=1.0):
    """Records, labels, and two points about `step` apart."""
    rng = np.random.default_rng(seed)
    X, w = rng.standard_normal((n, FEATURES)), scale * rng.standard_normal(model.weights(FEATURES))
    return X, labels(model, rng, n), w, w + step * rng.standard_normal(w.shape) / math.sqrt(len(w))


def labels(model, rng, n):
    if isinstance(model, Classifier):
        return rng.integers(0, model.classes, n).astype(float)
    return drawn(model.labels, rng, n)


# Sixty digits, independent of the code under test


def exact_difference(model, w, before, x, y):
    """Difference of one record's gradients (d,), as decimal numbers."""
    with localcontext() as digits:
        digits.prec, digits.Emin = 60, -(10**6)
        at, other = (exact_gradient(model, [Decimal(value) for value in point], x, y) for point in (w, before))
        return [a - b for a, b in zip(at, other, strict=True)]


def exact_gradient(model, w, x, y):
    x, d = [Decimal(value) for value in x], len(x)
    if isinstance(model, Linear):
        r = slope(model.loss, dot(w, x), y)
        return [r * value for value in x]
    if isinstance(model, SoftmaxRegression):
        r = residuals(model, [dot(w[c * d : (c + 1) * d], x) for c in range(model.classes)], y)
        return [each * value for each in r for value in x]
    m, z1 = model.hidden, [dot(w[j * d : (j + 1) * d], x) for j in range(model.hidden)]
    if model.activation == "relu":
        h, on = [max(z, Decimal(0)) for z in z1], [Decimal(z > 0) for z in z1]
    else:
        h, on = [(1 + z.exp()).ln() for z in z1], [1 / (1 + (-z).exp()) for z in z1]
    rows = [w[m * d :][c * (m + 1) : (c + 1) * (m + 1)] for c in range((len(w) - m * d) // (m + 1))]
    h.append(Decimal(1))
    outer = residuals(model, [dot(row, h) for row in rows], y)
    inner = [on[j] * sum(o * row[j] for o, row in zip(outer, rows, strict=True)) for j in range(m)]
    return [each * value for each in inner for value in x] + [each * value for each in outer for value in h]


def residuals(model, z, y):
    if isinstance(model, RegressionNetwork):
        return [slope(model.loss, z[0], y)]
    powers = [value.exp() for value in z]
    return [power / sum(powers) - (k == y) for k, power in enumerate(powers)]


def slope(loss, z, y):
    t = z - Decimal(y)
    if isinstance(loss, Logistic):
        return 1 / (1 + (-z).exp()) - (1 + Decimal(y)) / 2
    if isinstance(loss, Squared):
        return t
    if isinstance(loss, Poisson):
        return (z if z <= 300 else Decimal(300)).exp() - Decimal(y)
    if isinstance(loss, Huber):
        return max(min(t, Decimal(loss.width)), -Decimal(loss.width))
    if isinstance(loss, Moreau):
        left, right = (Decimal(float(np.ravel(value)[0])) for value in loss.loss.slopes(np.array([y])))
        return max(min(Decimal(loss.weight) * t, right), left)
    if isinstance(loss, Convolution):
        return Decimal(float(loss.residual(np.array([float(z)]), np.array([y]))[0]))
    left, right = (Decimal(float(np.ravel(value)[0])) for value in loss.slopes(np.array([y])))
    return left if t < 0 else right if t > 0 else Decimal(0)


def dot(a, b):
    return sum((p * q for p, q in zip(a, b, strict=True)), Decimal(0))


def exact_norm(row):
    with localcontext() as digits:
        digits.prec = 60
        return dot(row, row).sqrt()


def naive_sum(model, w, before, X, y, bound, weights):
    total = [Decimal(0)] * len(w)
    with localcontext() as digits:
        digits.prec = 60
        for x, label, weight in zip(X, y, weights, strict=True):
            row = exact_difference(model, w, before, x, label)
            norm = exact_norm(row)
            factor = Decimal(float(weight)) * (min(Decimal(1), Decimal(bound) / norm) if norm else 1)
            total = [so_far + factor * value for so_far, value in zip(total, row, strict=True)]
    return np.array([float(value) for value in total])


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("part", [0.3, 1e9])
def test_the_sum_is_that_of_clipped_differences(model, step, part):
    """To ten digits of the sum, however short the step; for a convolution to 1e-14, as its module states."""
    X, y, w, before = sample(model, step=step)
    weights = np.random.default_rng(1).choice([0.0, 0.25, 1.0], len(y))
    norms = [float(exact_norm(exact_difference(model, w, before, x, label))) for x, label in zip(X, y, strict=True)]
    bound = part * (max(norms) or 1.0)
    found = model.clipped_difference_sum(w, before, X, y, bound, weights)
    wanted = naive_sum(model, w, before, X, y, bound, weights)
    drowned = isinstance(model, Linear) and isinstance(model.loss, Convolution)
    assert np.linalg.norm(found - wanted) <= 1e-10 * np.linalg.norm(wanted) + (1e-13 if drowned else 0.0)
    assert found.dtype == np.float64 and found.shape == w.shape


@pytest.mark.parametrize("model", SMOOTH, ids=str)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_no_single_record_is_above_the_bound(model, step, scale):
    seen = 0
    for seed in range(20):
        X, y, w, before = sample(model, 1, seed, step * scale, scale)
        whole = float(exact_norm(exact_difference(model, w, before, X[0], y[0])))
        bound = np.random.default_rng(seed).uniform(0.05, 0.9) * whole
        if bound < 1e-100:
            continue
        norm = np.linalg.norm(model.clipped_difference_sum(w, before, X, y, bound))
        assert norm <= bound * (1 + 1e-9)
        assert norm >= bound * (1 - 1e-7) or scale == 30.0
        seen += 1
    assert seen >= 3 or scale == 30.0  # at that scale most records are beyond the corners of their loss


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("step", STEPS)
def test_the_worst_pair_moves_the_sum_by_two_bounds_at_most(model, step):
    """Candidates of all sizes, mostly across the step; the two that differ most are the pair."""
    X, y, w, before = sample(model, 30, step=step)
    rng, bound = np.random.default_rng(5), 1e-3 * step
    along = (w - before)[:FEATURES] / np.linalg.norm((w - before)[:FEATURES])
    many = rng.standard_normal((300, FEATURES)) * 10.0 ** rng.uniform(-2, 4, 300)[:, None]
    many[100:200] += -np.outer(many[100:200] @ along, along) + 0.01 * along * np.linalg.norm(many[100:200])
    many[200:] = np.eye(FEATURES)[rng.integers(FEATURES, size=100)] * 10.0 ** rng.uniform(-2, 4, 100)[:, None]
    own = labels(model, rng, 300)
    alone = np.array(
        [model.clipped_difference_sum(w, before, x[None], own[i : i + 1], bound) for i, x in enumerate(many)]
    )
    gaps = np.linalg.norm(alone[:, None] - alone, axis=2)
    first, second = np.unravel_index(gaps.argmax(), gaps.shape)
    sums = []
    for at in (first, second):
        X[11], y[11] = many[at], own[at]
        sums.append(model.clipped_difference_sum(w, before, X, y, bound))
    moved = np.linalg.norm(sums[0] - sums[1])
    assert moved <= 2 * bound * (1 + 1e-6)
    if model in SMOOTH:
        assert moved > 1.3 * bound  # otherwise the pair would be no test


SPOILT = {
    "nan": [math.nan, 0, 0, 0],
    "inf": [0, 0, math.inf, 0],
    "-inf": [0, -math.inf, 0, 0],
    "huge": [1e308] * 4,
    "square": [0, 1e200, 0, 0],
    "both": [1e308, -1e308, 1e308, 0],
}


@pytest.mark.parametrize("name", SPOILT)
@pytest.mark.parametrize("scale", [1.0, 1e12])
@pytest.mark.parametrize("step", [1.0, 1e-10])
def test_a_record_that_is_no_number_adds_exactly_nothing(model, name, scale, step):
    X, y, w, before = sample(model, 12, step=step, scale=scale)
    others = np.ones(12)
    others[7] = 0.0
    wanted = model.clipped_difference_sum(w, before, X, y, 0.5, others)  # the others alone, in their places
    X[7] = SPOILT[name]
    np.testing.assert_array_equal(model.clipped_difference_sum(w, before, X, y, 0.5), wanted)
    np.testing.assert_array_equal(model.clipped_difference_sum(w, before, X, y, 0.5, others), wanted)
    assert np.isfinite(wanted).all()


@pytest.mark.parametrize("label", [math.nan, math.inf, -math.inf, 0.5, -1e300])
def test_a_label_that_the_loss_is_not_about_adds_exactly_nothing(model, label):
    if math.isfinite(label) and not isinstance(model, Classifier):
        pytest.skip("a real label")
    X, y, w, before = sample(model, 12)
    others = np.ones(12)
    others[7] = 0.0
    wanted = model.clipped_difference_sum(w, before, X, y, 0.5, others)
    y[7] = label
    np.testing.assert_array_equal(model.clipped_difference_sum(w, before, X, y, 0.5), wanted)


@pytest.mark.parametrize("size", [1e80, 1e155, 1e200, 1e307, math.inf, math.nan])
@pytest.mark.parametrize("both", [True, False])
def test_absurd_weights_give_a_finite_sum(model, size, both):
    X, y, w, before = sample(model, 12)
    with np.errstate(all="ignore"):
        w = w * size
        before = before * size if both else before
    total = model.clipped_difference_sum(w, before, X, y, 0.5)
    assert np.isfinite(total).all() and np.linalg.norm(total) <= 12 * 0.5 * (1 + 1e-6)
    if not math.isfinite(size):
        np.testing.assert_array_equal(total, np.zeros(len(w)))


entry = st.floats(-1e308, 1e308) | st.sampled_from([0.0, 1e-310, -5e-324, 1.0, -1.0, 1e154, -1.7e308])
any_label = st.sampled_from([0.0, 1.0, -1.0, 2.0, 0.5, 1e12, 1e300, -1e300, math.nan, math.inf])


@given(
    st.sampled_from(MODELS),
    st.lists(entry, min_size=FEATURES, max_size=FEATURES),
    any_label,
    st.integers(0, 10**6),
    st.sampled_from([0.0, 1e-200, 1.0, 700.0, 1e12]),
    st.sampled_from([0.0, 1e-14, 1e-6, 1.0, 1e6]),
    st.sampled_from([1e-99, 1e-12, 0.5, 1e6]),
)
def test_no_record_gets_past_the_bound(model, x, y, seed, scale, step, bound):
    """For any entries and any label; without a warning."""
    rng = np.random.default_rng(seed)
    w = scale * rng.uniform(-1, 1, model.weights(FEATURES))
    before = w + step * max(scale, 1e-3) * rng.uniform(-1, 1, len(w))
    total = model.clipped_difference_sum(w, before, np.array([x]), np.array([y]), bound)
    assert np.isfinite(total).all() and math.hypot(*total) <= bound * (1 + 1e-9)


def test_no_step_no_records_and_no_bound_make_zero(model):
    X, y, w, before = sample(model)
    zero = np.zeros(len(w))
    np.testing.assert_array_equal(model.clipped_difference_sum(w, w, X, y, 0.5), zero)
    np.testing.assert_array_equal(model.clipped_difference_sum(w, before, X[:0], y[:0], 0.5), zero)
    np.testing.assert_array_equal(model.clipped_difference_sum(w, before, X, y, 0.5, np.zeros(len(y))), zero)
    for bound in (5e-324, 1e-200, 9e-101):
        np.testing.assert_array_equal(model.clipped_difference_sum(w, before, X, y, bound), zero)


def test_arguments_are_left_alone(model):
    X, y, w, before = sample(model)
    X[3] = math.inf
    given_ = [X, y, w, before, np.full(len(y), 0.5)]
    copies = [array.copy() for array in given_]
    model.clipped_difference_sum(w, before, X, y, 0.5, given_[-1])
    for array, copy in zip(given_, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_over_short_steps_the_differences_add_up_to_the_whole(model):
    """DIFF2's assumption: unclipped differences along a path add up to that between its ends."""
    if not isinstance(model, Linear | Network) or model not in SMOOTH:
        pytest.skip("of the same kind, or its slopes jump")
    X, y, w, end = sample(model, 20)
    path = [w + (end - w) * part for part in np.linspace(0, 1, 6)[:-1]] + [end]
    parts = sum(model.clipped_difference_sum(b, a, X, y, 1e9) for a, b in itertools.pairwise(path))
    np.testing.assert_allclose(parts, model.clipped_difference_sum(end, w, X, y, 1e9), rtol=1e-9, atol=1e-11)
    at, before = (model.clipped_gradient_sum(p, X, y, model.bounds(X, y, 1e9)) for p in (end, w))
    np.testing.assert_allclose(parts, at - before, rtol=1e-9, atol=1e-11)


# The two products of a network's second layer


def cancelling(size):
    """A network of one unit whose h' is `size` times the remainder of a h' + b k', by construction (0, 1)."""
    model = RegressionNetwork(1)
    before, w = np.array([size - 1.0, 0.0, 0.0]), np.array([size, 0.0, 1.0])
    return model, w, before, np.ones((1, 1)), np.array([size])  # a = 1, h = size, b = -size, k = 1


@pytest.mark.parametrize("size", [1e2, 1e4, 1e6, 1e8])
def test_products_that_cancel_are_bounded_all_the_same(size):
    model, w, before, X, y = cancelling(size)
    for bound in np.random.default_rng(0).uniform(0.1, 0.9, 50):
        total = model.clipped_difference_sum(w, before, X, y, bound)
        assert sum(Fraction(value) ** 2 for value in total) <= Fraction(bound * (1 + 1e-9)) ** 2
        assert total[-1] >= bound * (1 - 1e-3) or size * 2.0**-50 > ROUGH


def test_a_record_whose_rounding_would_be_felt_adds_nothing():
    model, w, before, X, y = cancelling(1e12)
    assert not model.clipped_difference_sum(w, before, X, y, 0.5).any()
    assert model.clipped_difference_sum(*cancelling(1e6)[1:], 0.5).any()


def test_a_softmax_that_is_almost_certain_keeps_its_digits():
    """p = 1 - 1e-20: subtraction would leave nothing of the likeliest class's change."""
    z, dz = np.array([[0.0, -46.0, -50.0]]), np.array([[3e-3, -2e-3, 1e-3]])
    found = Softmax().residual_change(z, dz, np.zeros(1))[0]
    with localcontext() as digits:
        digits.prec = 60
        new, old = (
            [value.exp() for value in row]
            for row in ([Decimal(v) for v in z[0]], [Decimal(a) - Decimal(b) for a, b in zip(z[0], dz[0], strict=True)])
        )
        wanted = [float(p / sum(new) - q / sum(old)) for p, q in zip(new, old, strict=True)]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_declared_fields_make_the_models_of_these_tests():
    assert [field.name for field in dataclasses.fields(RegressionNetwork)] == ["hidden", "activation", "loss"]
