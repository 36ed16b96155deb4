"""Every model: gradients, clipped sums, evaluation against naive loops; softmax under every method.

test_network.py has the tests of the network alone.
"""

import dataclasses
import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit, log_softmax, softmax

from fedcore.algorithms import ALGORITHMS, Mbsgd
from fedcore.arrays import pack, unpack
from fedcore.errors import SiloError
from fedcore.losses import LOSSES, Hinge, Huber, Logistic, Moreau, Smoothable, Softmax, Squared
from fedcore.models import (
    Classifier,
    Linear,
    Network,
    OneHiddenLayer,
    OwnLoss,
    RegressionNetwork,
    SoftmaxRegression,
    model_of,
)
from fedcore.models.model_config import ModelConfig
from fedcore.optim.averaging import Messages
from fedcore.state import dump_state, load_state
from tests.contract.epsilon_by_hand import events_by_hand
from tests.selection import some_in_make_test

MODELS = [
    *(Linear(loss()) for loss in LOSSES.values() if not issubclass(loss, Smoothable)),
    *(SoftmaxRegression(classes) for classes in (2, 3, 10)),
    *(OneHiddenLayer(classes, hidden) for classes, hidden in ((2, 1), (2, 6), (10, 7))),
    OneHiddenLayer(3, 6, "softplus"),
    *(RegressionNetwork(5, kind, loss) for kind in ("relu", "softplus") for loss in (Squared(), Huber(width=0.7))),
]


@pytest.fixture(params=MODELS, ids=str)
def model(request):
    return request.param


def sample(model, n=40, features=5, seed=0):
    rng = np.random.default_rng(seed)
    X, w = rng.standard_normal((n, features)), rng.standard_normal(model.weights(features))
    if isinstance(model, Classifier):
        return X, rng.integers(0, model.classes, n).astype(float), w
    low, high = model.labels.pair
    return X, np.where(rng.random(n) < 0.5, low, high), w


def gradient(model, w, x, y):
    """One record's gradient (d,), materialised; independent of the code under test."""
    if isinstance(model, Network):
        W1, W2, b = layers(model, w, len(x))
        z = W1 @ x
        if model.activation == "relu":
            h, slopes = np.maximum(z, 0.0), z > 0
        else:
            h, slopes = np.log1p(np.exp(-np.abs(z))) + np.maximum(z, 0.0), expit(z)
        if isinstance(model, OneHiddenLayer):
            outer = softmax(W2 @ h + b) - np.eye(model.classes)[int(y)]
        else:
            outer = model.loss.residual(W2 @ h + b, np.array([y]))
        inner = np.array([outer @ W2[:, j] * slopes[j] for j in range(model.hidden)])
        return np.concatenate([np.outer(inner, x).ravel(), np.outer(outer, np.append(h, 1.0)).ravel()])
    if isinstance(model, SoftmaxRegression):
        W = w.reshape(model.classes, len(x))
        return np.outer(softmax(W @ x) - np.eye(model.classes)[int(y)], x).ravel()
    return model.loss.residual(np.array([w @ x]), np.array([y]))[0] * x


def layers(model, w, features):
    """W1, W2 without its last column, and that column, the bias, of a network."""
    cut = model.hidden * features
    W2 = w[cut:].reshape(-1, model.hidden + 1)
    return w[:cut].reshape(model.hidden, features), W2[:, :-1], W2[:, -1]


def naive_sum(model, w, X, y, clip):
    total = np.zeros(len(w))
    for x, label in zip(X, y, strict=True):
        g = gradient(model, w, x, label)
        total += g * min(1.0, clip / max(float(np.linalg.norm(g)), 1e-300))
    return total


def clipped_sum(model, w, X, y, clip):
    return model.clipped_gradient_sum(w, X, y, model.bounds(X, y, clip))


def test_the_unclipped_sum_is_the_derivative_of_the_losses(model):
    X, y, w = sample(model)
    found, h = clipped_sum(model, w, X, y, 1e9), 1e-6
    for k in range(len(w)):
        step = h * np.eye(len(w))[k]
        numeric = (model.evaluate(w + step, X, y)[0].sum() - model.evaluate(w - step, X, y)[0].sum()) / (2 * h)
        assert found[k] == pytest.approx(numeric, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("clip", [1e-3, 0.5, 1e9])
def test_the_clipped_sum_is_the_sum_of_clipped_gradients(model, clip):
    X, y, w = sample(model)
    X *= np.logspace(-6, 3, len(X))[:, None]
    X[7] = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = clipped_sum(model, w, X, y, clip)
    assert found.shape == w.shape and found.dtype == np.float64
    np.testing.assert_allclose(found, naive_sum(model, w, X, y, clip), rtol=1e-10, atol=1e-12 * min(clip, 1e3))


def test_no_records_sum_to_zero_and_a_part_is_that_part(model):
    X, y, w = sample(model)
    bounds = model.bounds(X, y, 0.5)
    np.testing.assert_array_equal(model.clipped_gradient_sum(w, X[:0], y[:0], bounds[:0]), np.zeros(len(w)))
    some = np.array([3, 8, 21])
    found = model.clipped_gradient_sum(w, X[some], y[some], bounds[some])
    np.testing.assert_allclose(found, naive_sum(model, w, X[some], y[some], 0.5), rtol=1e-10, atol=1e-13)


def test_arguments_are_left_alone(model):
    X, y, w = sample(model)
    bounds = model.bounds(X, y, 0.5)
    copies = [array.copy() for array in (w, X, y, bounds)]
    model.clipped_gradient_sum(w, X, y, bounds)
    model.evaluate(w, X, y)
    for array, copy in zip((w, X, y, bounds), copies, strict=True):
        np.testing.assert_array_equal(array, copy)


entry = st.floats(-1e308, 1e308) | st.sampled_from([0.0, 1e-310, -5e-324, 1.0, -1.0, 1e154, -1.7e308])
label = st.sampled_from([0.0, 1.0, -1.0, 2.0, 0.5, 1e300, -1e300, math.nan, math.inf])


@given(
    st.sampled_from(MODELS),
    st.lists(entry, min_size=3, max_size=3),
    label,
    st.integers(0, 10**6),
    st.sampled_from([0.0, 1e-200, 1.0, 700.0, 1e12]),
    st.sampled_from([1e-12, 0.5, 1e6]),
)
def test_no_record_gets_past_the_clip(model, x, y, seed, scale, clip):
    """For any entries and any label; the square of a norm would overflow or vanish for many of these."""
    X, w = np.array([x]), scale * np.random.default_rng(seed).uniform(-1, 1, model.weights(3))
    with np.errstate(all="ignore"):
        total = clipped_sum(model, w, X, np.array([y]), clip)
    assert np.isfinite(total).all()
    assert math.hypot(*total) <= clip * (1 + 1e-9)


def test_a_record_that_is_not_a_number_adds_nothing(model):
    X, y, w = sample(model, n=6)
    X[1], w = 1e308, 1e12 * w  # its predictor overflows
    y[3] = np.nan
    keep = [0, 2, 4, 5]
    with np.errstate(all="ignore"):
        found = clipped_sum(model, w, X, y, 0.5)
    if isinstance(model, OwnLoss):
        np.testing.assert_allclose(found, naive_sum(model, w, X[keep], y[keep], 0.5), rtol=1e-12, atol=1e-13)
    assert np.isfinite(found).all()


def test_a_start_has_the_models_size(model):
    start = model.start(5, np.random.default_rng(0))
    assert start.shape == (model.weights(5),) and start.dtype == np.float64
    assert isinstance(model, Network) == start.any()


# Softmax regression


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("wrong", [-1.0, 0.5, 10.0, 1e300, math.nan, math.inf])
def test_a_label_that_is_no_class_adds_nothing(classes, wrong):
    model = SoftmaxRegression(classes)
    X, y, w = sample(model, n=5)
    y[2] = wrong
    found, rest = clipped_sum(model, w, X, y, 0.5), [0, 1, 3, 4]
    np.testing.assert_allclose(found, naive_sum(model, w, X[rest], y[rest], 0.5), rtol=1e-12, atol=1e-14)


def test_evaluation_by_scipy_and_by_hand():
    model = SoftmaxRegression(3)
    X, y, w = sample(model)
    losses, wrong = model.evaluate(w, X, y)
    z = X @ w.reshape(3, 5).T
    np.testing.assert_allclose(losses, -log_softmax(z, axis=1)[np.arange(40), y.astype(int)], rtol=1e-12, atol=1e-14)
    assert wrong.tolist() == [max(range(3), key=lambda k: row[k]) != label for row, label in zip(z, y, strict=True)]
    losses, wrong = model.evaluate(np.zeros(15), X, y)
    assert losses == pytest.approx(np.full(40, math.log(3))) and wrong.tolist() == (y != 0).tolist()
    far, _ = model.evaluate(1e4 * w, X, y)
    assert np.isfinite(far).all() and far.max() > 1e3


def test_constants_hold_and_are_reached():
    """|p - e| up to sqrt(2), and the Hessian diag(p) - pp' with eigenvalues up to 1/2, at (1/2, 1/2)."""
    rng, loss = np.random.default_rng(2), Softmax()
    z = np.concatenate([4 * rng.standard_normal((2000, 5)), 30 * np.eye(5)])
    y = np.concatenate([rng.integers(0, 5, 2000), np.roll(np.arange(5), 1)]).astype(float)
    norms = np.linalg.norm(loss.residual(z, y), axis=1)
    assert norms.max() <= loss.lipschitz and norms.max() > 0.999 * loss.lipschitz
    p = softmax(np.concatenate([z, [[40.0, 40, 0, 0, 0]]]), axis=1)
    largest = [np.linalg.eigvalsh(np.diag(row) - np.outer(row, row))[-1] for row in p]
    assert max(largest) <= loss.smoothness * (1 + 1e-12) and max(largest) > 0.999 * loss.smoothness
    pairs = rng.permutation(len(z))
    change = np.linalg.norm(loss.residual(z, y) - loss.residual(z[pairs], y), axis=1)
    assert (change <= loss.smoothness * np.linalg.norm(z - z[pairs], axis=1) * (1 + 1e-12)).all()
    made = ModelConfig.model_validate({"loss": {"name": "softmax"}, "feature_bound": 3.0})
    assert made.gradient_bound == 3 * math.sqrt(2) and made.class_ids


def test_a_residual_keeps_its_norm_where_squares_would_vanish():
    z = np.array([[0.0, -800, -900], [0, -360, -400]])
    r = Softmax().residual(z, np.zeros(2))
    assert (np.abs(r[:, 1:]) < 1e-147).all() and (r[:, 1:] ** 2 > 0).all()


def test_what_a_loss_stands_for():
    assert model_of(Logistic()) == Linear(Logistic())
    assert model_of(SoftmaxRegression(4)).weights(7) == 28
    smoothed = Linear(Moreau(loss=Hinge(), weight=2.0))
    X, y, w = sample(smoothed)
    np.testing.assert_array_equal(smoothed.evaluate(w, X, y)[0], Hinge().value(X @ w, y))
    with pytest.raises(ValueError, match="greater than or equal to 2"):
        SoftmaxRegression(1)


def test_two_classes_are_logistic_regression(federate):
    """With y = 2k - 1 and w = W_1 - W_0 the loss is log(1 + exp(-y <w, x>)).

    The gradient of row 1 is the logistic one, that of row 0 its opposite. So a joint norm of sqrt(2) c is a logistic
    one of c, and w moves twice a step.
    """
    model, linear = SoftmaxRegression(2), Linear(Logistic())
    X, k, W = sample(model)
    y, w = 2 * k - 1, W[5:] - W[:5]
    np.testing.assert_allclose(model.evaluate(W, X, k)[0], linear.evaluate(w, X, y)[0], rtol=1e-12)
    np.testing.assert_array_equal(model.evaluate(W, X, k)[1], linear.evaluate(w, X, y)[1])
    found = clipped_sum(model, W, X, k, math.sqrt(2) * 0.3)
    wanted = clipped_sum(linear, w, X, y, 0.3)
    np.testing.assert_allclose(found, np.concatenate([-wanted, wanted]), rtol=1e-12, atol=1e-14)

    same = {"epsilon": None, "diameter": 1e6, "smoothness": 0.5}
    three = {f"s{i}": (X[i::3][:12], k[i::3][:12]) for i in range(3)}
    signs = {name: (X, 2 * k - 1) for name, (X, k) in three.items()}
    both = federate(Mbsgd(step=0.5, rounds=30), three, loss=model, clip=math.sqrt(2) * 0.3, ridge=0.1, **same).final()
    one = federate(Mbsgd(step=1.0, rounds=30), signs, loss=Logistic(), clip=0.3, ridge=0.05, **same).final()
    np.testing.assert_allclose(both[5:] - both[:5], one, rtol=1e-10)


# Under every method

QUICK = {
    "localized-mbsgd": {"rounds": (4, 3, 2), "step": 0.5},
    "localized-accelerated": {"rounds": (4, 3, 2), "lam": 0.1},
    "localized-subgradient": {"rounds": (4, 3, 2)},
}
EXACT = {
    "localized-mbsgd": ({"step": 1, "lam": 0.005, "exponent": 0, "rounds": 60, "average": "last"}, 1e-7),
    "localized-accelerated": ({"lam": 0.005, "exponent": 0, "rounds": 160}, 1e-7),
    "one-pass-mbsgd": ({"step": 1, "rounds": 64, "average": "last"}, 1e-6),
    "mbsgd": ({"step": 1, "rounds": 100, "average": "last"}, 1e-7),
    "accelerated-mbsgd": ({"rounds": 160}, 1e-7),
    "one-pass-accelerated-mbsgd": ({"rounds": 64, "lam": 1e-9, "form": "regularised"}, 1e-2),
    "localized-subgradient": ({"lam": 0.005, "exponent": 0, "rounds": 400}, 1e-3),
    "mb-subgradient": ({"lam": 1e-6, "rounds": 4000}, 1e-3),
    "scaffold": ({"step": 1.0, "sampling_rate": 1.0, "local_steps": 4, "rounds": 120}, 1e-7),
    # On heterogeneous silos local steps alone have another limit, farther by the order of the step length.
    "fedavg": ({"step": 0.01, "sampling_rate": 1.0, "local_steps": 4, "rounds": 2500}, 5e-3),
    "fedprox": ({"step": 0.01, "sampling_rate": 1.0, "local_steps": 4, "rounds": 2500}, 5e-3),
    "fedsgd": ({"step": 1.0, "sampling_rate": 1.0, "rounds": 120}, 1e-7),
}
"""Hyperparameters that minimise without noise, and how closely (relative); SciPy's error is 1e-8."""
THREE = SoftmaxRegression(3)


NAMES = sorted(
    (name for name in ALGORITHMS if not ALGORITHMS[name].linear_only),
    key=lambda name: (ALGORITHMS[name].takes_nonsmooth, name),
)


@pytest.fixture(params=NAMES)
def method(request):
    hyper = {"rounds": 6} if "localized" not in request.param else {}
    if "sampling_rate" in ALGORITHMS[request.param].__dataclass_fields__:
        hyper["sampling_rate"] = 1.0
    return ALGORITHMS[request.param](**QUICK.get(request.param, hyper))


@pytest.fixture
def flowers():
    """Three silos of unequal sizes, four features, three classes, each silo short of one."""
    rng = np.random.default_rng(7)
    data = {}
    for number, (name, n) in enumerate({"ash": 16, "birch": 21, "cedar": 19}.items()):
        y = rng.choice([k for k in range(3) if k != number], n).astype(float)
        data[name] = (rng.standard_normal((n, 4)) + np.eye(3, 4)[y.astype(int)], y)
    return data


def test_plan_messages_and_ledger_are_of_all_weights(method, federate, flowers):
    federation = federate(method, flowers, loss=THREE, smoothness=2.0)
    assert federation.plan.problem.objective.dim == 12
    sent, size = 0, 0
    for query, releases, _ in federation.play():
        turn = federation.plan.phases[query.phase - 1].at(query.round).schedule.in_turn
        assert [release.payload.shape for release in releases] == ([(24,)] if turn else [(12,)] * 3)
        assert all(array.shape == (12,) for array in query.arrays.values())
        sent += sum(release.payload.size for release in releases)
        size += sum(len(release.payload.tobytes()) for release in releases)
    totals = federation.plan.as_json()["totals"]
    assert (totals["floats_up"], totals["bytes_up"]) == (sent, size)
    assert sent == federation.plan.rounds * 3 * 12 or method.vectors_up > 1
    for name, silo in federation.silos.items():
        addresses = [(phase, round) for phase, round, *_ in events_by_hand(federation.plan, name)]
        wanted = [federation.plan.phases[phase - 1].event(name, round) for phase, round in addresses]
        assert [row.event for row in silo.ledger.rows("run")] == wanted
    for account in federation.sites[0].accounts("run"):
        assert 0.99 < account.epsilon <= 1.0


def test_one_silo_is_the_centralised_method(method, federate, flowers):
    """The method's own server side, with means of materialised, clipped gradients at the plan's positions."""
    if method.vectors_up > 1:
        pytest.skip("local steps about samples: test_diff2.py has a naive implementation")
    X, y = flowers["birch"]
    federation = federate(method, {"only": (X, y)}, epsilon=None, clip=0.7, loss=THREE, smoothness=2.0, ridge=0.05)
    approved = federation.silos["only"]._runs["run"]
    order = [int(np.flatnonzero((row == X).all(axis=1))[0]) for row in approved.X]
    state = federation.start
    for phase in federation.plan.phases:
        for round in range(1, phase.rounds + 1):
            event = phase.event("only", round)
            part = order[event.start : event.stop]
            sent = {key: array.reshape(-1, 12)[0] for key, array in method.broadcast(state, phase).items()}

            bound = phase.at(round).question.clip

            def ask(_, w, before=None, part=part, bound=bound):
                if before is None:
                    return naive_sum(THREE, w, X[part], y[part], 0.7) / len(part)
                total = np.zeros(12)
                for j in part:
                    at, other = (naive_sum(THREE, point, X[[j]], y[[j]], 1e9) for point in (w, before))
                    longest = bound * np.linalg.norm(w - before)
                    total += (at - other) * min(1.0, longest / max(np.linalg.norm(at - other), 1e-300))
                return total / len(part)

            silo = SimpleNamespace(ridge=0.05, ask=ask)
            state = method.server_update(state, Messages({0: method.silo_step(sent, silo)}), phase)
    np.testing.assert_allclose(federation.final(), method.output(state), rtol=1e-9, atol=1e-11)


LONGEST = ["fedavg", "fedprox", "mb-subgradient"]
"""Methods of thousands of rounds, for `make slow`."""


@pytest.mark.parametrize(
    "method", some_in_make_test(NAMES, [name for name in NAMES if name not in LONGEST]), indirect=True
)
def test_without_noise_it_reaches_the_minimiser(method, federate):
    """Each silo repeats one record, so all of its shards are the same problem; SciPy minimises it too."""
    hyper, tolerance = EXACT.get(method.name, ({}, 0.1))
    X, y, ridge = sample(THREE, n=6, features=3, seed=4)[0] / 2, np.array([0.0, 1, 2, 0, 1, 2]), 0.3

    def objective(w):
        z = X @ w.reshape(3, 3).T
        slope = (softmax(z, axis=1) - np.eye(3)[y.astype(int)]).T @ X / 6
        value = -log_softmax(z, axis=1)[np.arange(6), y.astype(int)].mean() + ridge / 2 * w @ w
        return value, slope.ravel() + ridge * w

    wanted = minimize(objective, np.zeros(9), jac=True, method="BFGS", options={"gtol": 1e-12}).x
    data = {f"s{i}": (np.tile(X[i], (64, 1)), np.full(64, y[i])) for i in range(6)}
    smooth = 0.5 * (X**2).sum(1).max()
    found = federate(
        ALGORITHMS[method.name](**hyper),
        data,
        epsilon=None,
        clip=1e3,
        loss=THREE,
        smoothness=smooth,
        diameter=1e2,
        ridge=ridge,
    ).final()
    assert np.linalg.norm(found - wanted) <= tolerance * np.linalg.norm(wanted)


def test_resume_from_every_round_ends_with_the_same_bits(method, federate, flowers):
    whole = federate(method, flowers, loss=THREE, smoothness=2.0)
    receipts, checkpoints = [], []
    for _, releases, state in whole.play():
        receipts += releases.receipts
        checkpoints.append((pack(dump_state(state)), list(receipts)))
    wanted = method.output(state).tobytes()
    for data, receipts in checkpoints[::3]:
        fresh = federate(method, flowers, loss=THREE, smoothness=2.0)
        fresh.sites[0].restore("run", receipts)
        assert fresh.final(load_state(type(method).state, unpack(data))).tobytes() == wanted


def test_a_plan_of_another_number_of_classes_is_refused(federate, flowers):
    made = federate(Mbsgd(rounds=2), flowers, loss=THREE, approve=False)
    agreement = dataclasses.replace(made.agreement, loss=SoftmaxRegression(4))
    with pytest.raises(SiloError, match="the plan says 12 weights, its records have 16"):
        made.sites[0]._site.approve(agreement.to_bytes())


def test_extreme_records_change_no_outcome(federate, flowers):
    """Labels outside of the classes, features that are huge or NaN: an ordinary answer, and no warning."""
    X, y = (array.copy() for array in flowers["ash"])
    X[0], X[1], X[2] = np.nan, 1.7e308, 5e-324
    y[3], y[4] = np.nan, 7.0
    data = {**flowers, "ash": (X, y)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        federation = federate(Mbsgd(rounds=4, step=50.0), data, loss=THREE)
        for _, releases, _ in federation.play():
            assert all(np.isfinite(release.payload).all() for release in releases)
