"""Algorithm 7's gradient at drawn points, against balls in d dimensions and the closed form of its mean."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedcore.accounting.calibration import Budget
from fedcore.algorithms import Mbsgd
from fedcore.losses import TWO_CLASSES, Absolute, Convolution, DrawnConvolution, Hinge, Quantile, unsmoothed
from fedcore.messages import Query
from fedcore.models.smoothing import ConvolutionSmoothing
from fedcore.planning.problem import SiloFacts
from tests.problems import problem_of
from tests.selection import some_in_make_test

NONSMOOTH = [Hinge(), Absolute(), Quantile(tau=0.2)]


def ball(rng, count, d, s):
    """Uniform points of the ball of radius s (count, d): a direction, and the d-th root of a uniform number."""
    v = rng.standard_normal((count, d))
    return v * (s * rng.random(count) ** (1 / d) / np.linalg.norm(v, axis=1))[:, None]


@pytest.mark.parametrize("d", [1, 2, 5, 40])
def test_shifts_are_projections_of_uniform_points_of_the_ball(d):
    rng = np.random.default_rng(3)
    x, count = rng.standard_normal(d), 20_000
    loss = DrawnConvolution(Hinge(), 0.7, 1.0, d)
    shifts = loss.shifts(np.full(count, np.linalg.norm(x)), np.random.default_rng(4))
    assert stats.ks_2samp(shifts, ball(rng, count, d, 0.7) @ x).pvalue > 1e-3
    # E <v, x>^2 = s^2 |x|^2 / (d + 2), the d-th part of E |v|^2 |x|^2.
    assert np.mean(shifts**2) == pytest.approx(0.49 * (x @ x) / (d + 2), rel=6 * math.sqrt(2 / count))
    assert np.abs(shifts).max() <= 0.7 * np.linalg.norm(x)
    assert loss.shifts(np.zeros(3), rng).tolist() == [0.0, 0.0, 0.0]


DRAWN = [(loss, batch) for loss in NONSMOOTH for batch in (None, 8)]


def messages(federate, loss, X, y, w, rounds, batch=None, clip=10.0):
    federation = federate(Mbsgd(rounds=rounds, batch=batch), {"a": (X, y)}, epsilon=None, loss=loss, clip=clip)
    ask = (Query("run", federation.plan.digest, 1, r + 1, ("a",), {"w": w}) for r in range(rounds))
    return np.array([federation.ask(query)[0].payload for query in ask])


@pytest.mark.parametrize(
    ("loss", "batch"),
    some_in_make_test(DRAWN, [case for case in DRAWN if case[0].name == "hinge" and case[1] is None]),
    ids=str,
)
def test_a_silos_messages_are_those_of_direct_draws_from_balls(federate, loss, batch):
    """Mean against the closed form with reach s |x_j|, covariance against 4,000 messages from d-dimensional balls."""
    n, d, s, rounds = 20, 4, 0.9, 4000
    rng = np.random.default_rng(6)
    X, w = rng.standard_normal((n, d)), 0.3 * rng.standard_normal(d)
    y = np.where(rng.random(n) < 0.5, 1.0, -1.0) if loss.labels.classes else X @ w + 0.4 * rng.standard_normal(n)
    found = messages(federate, DrawnConvolution(loss, s, 1.0, d), X, y, w, rounds, batch)
    q = 1.0 if batch is None else batch / n
    direct = np.empty((rounds, d))
    for r in range(rounds):
        z = np.einsum("nd,nd->n", X, w + ball(rng, n, d, s))
        taken = rng.random(n) < q
        direct[r] = (loss.residual(z, y) * taken) @ X / (q * n)
    closed = np.zeros(d)
    for x, label in zip(X, y, strict=True):
        exact = Convolution(loss, s * float(np.linalg.norm(x)), d)
        closed += exact.residual(np.array([x @ w]), np.array([label]))[0] * x / n
    off = found.mean(0) - closed
    assert stats.chi2.sf(rounds * off @ np.linalg.solve(np.cov(found.T), off), d) > 1e-3
    whitened = np.linalg.solve(np.linalg.cholesky(np.cov(direct.T)), (found - closed).T)
    np.testing.assert_allclose(whitened @ whitened.T / rounds, np.eye(d), atol=0.15)


def test_the_variance_is_within_the_bound_that_the_stages_plan_with(federate):
    """L^2 / K per silo, with all records too."""
    rng = np.random.default_rng(8)
    X = rng.standard_normal((30, 3))
    X /= np.linalg.norm(X, axis=1)[:, None]
    loss = DrawnConvolution(Hinge(), 2.0, 1.0, 3)
    for batch, K in ((None, 30), (6, 6)):
        found = messages(federate, loss, X, np.ones(30), X[0], 1000, batch)
        assert 0.1 / K < np.trace(np.cov(found.T)) < 1.0 / K


def test_every_gradient_is_clipped_after_its_point_was_drawn(federate):
    """Gradients have norm 3; clipped to 0.5 each, and two data sets that differ in one record are 2 C / n apart."""
    X = np.tile([3.0, 0.0], (10, 1))
    loss = DrawnConvolution(Absolute(), 5.0, 3.0, 2)
    found = messages(federate, loss, X, np.zeros(10), np.zeros(2), 50, clip=0.5)
    steps = found[:, 0] * 10 / 0.5
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-9)
    assert np.abs(found).max() <= 0.5 and len(set(np.rint(steps))) > 4
    moved = X.copy()
    moved[3] = [-3.0, 0.0]
    others = messages(federate, loss, moved, np.zeros(10), np.zeros(2), 50, clip=0.5)
    assert np.linalg.norm(others - found, axis=1).max() <= 2 * 0.5 / 10 * (1 + 1e-9)


def test_constants_are_those_of_the_mean_for_the_largest_records():
    problem = problem_of((SiloFacts("a", 100),), 6, 2.0, math.inf, 10.0, 1, Budget(1.0, 1e-5))
    exact = ConvolutionSmoothing(radius=0.4).of(Hinge(), problem, 2.0)
    drawn = ConvolutionSmoothing(radius=0.4, estimate="sampled").of(Hinge(), problem, 2.0)
    assert exact == Convolution(Hinge(), 0.8, 6) == drawn.mean
    assert (drawn.smoothness, drawn.gap, drawn.lipschitz) == (exact.smoothness, exact.gap, exact.lipschitz)
    assert unsmoothed(drawn) == Hinge() and drawn.labels == TWO_CLASSES
    assert ConvolutionSmoothing(estimate="sampled").of(Hinge(), problem, 2.0).radius > 0
