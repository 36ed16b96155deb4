"""The average of Lowy and Razaviyayn's theorems: its weights, also where they overflow, and the model that it makes."""

from fractions import Fraction

import numpy as np
import pytest

from fedcore.algorithms import Mbsgd
from fedcore.optim.sgd import weight_sum


@pytest.mark.parametrize("fall", [0.0, 1e-14, 1e-6, 0.25, 0.9])
def test_sums_of_weights_are_the_recursion_in_exact_arithmetic(fall):
    total = Fraction(0)
    for count in range(1, 120):
        total = 1 + (1 - Fraction(fall)) * total
        assert weight_sum(count, fall) == pytest.approx(float(total), rel=1e-13)


def test_many_weights_do_not_overflow():
    """(1 - 1/4)^-R is infinite in floating point from R = 2468 on; the sum over the last weight tends to 4."""
    with pytest.raises(OverflowError):
        0.75**-2500
    assert weight_sum(10**6, 0.25) == pytest.approx(4.0, rel=1e-15)
    mean = 0.0
    for r in range(5000):  # of 0, 1, 2, ...: it trails the last by the mean of a geometric law, 3
        mean += (r - mean) / weight_sum(r + 1, 0.25)
    assert mean == pytest.approx(4999 - 3, rel=1e-12)


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_the_model_is_the_weighted_average_of_the_iterates_before_each_step(federate, toy, ridge):
    method = Mbsgd(step=0.7, rounds=9, average="theory")
    federation = federate(method, toy, epsilon=None, diameter=1.5, ridge=ridge)
    asked, ends = [], []
    for query, _, state in federation.play():
        asked.append(query.arrays["w"])  # w_0 .. w_8, what is asked about in rounds 1 to 9
        ends.append(method.output(state))
    weights = [(1 - ridge * 0.7) ** -(r + 1) for r in range(9)]
    np.testing.assert_array_equal(asked[0], 0)
    for count, end in enumerate(ends, start=1):
        np.testing.assert_allclose(end, np.average(asked[:count], axis=0, weights=weights[:count]), rtol=1e-12)
    # The iterates themselves do not depend on how they are averaged.
    other = federate(Mbsgd(step=0.7, rounds=9, average="last"), toy, epsilon=None, diameter=1.5, ridge=ridge)
    for mine, query in zip(asked, other.queries(), strict=True):
        np.testing.assert_allclose(mine, query.arrays["w"], rtol=1e-9)


def test_with_the_theorems_numbers_the_excess_risk_is_below_the_theorems_bound(federate):
    """Strongly convex least squares: D^2 / (eta R) + 2 eta (...) of Lemma E.4 at the planned step, over 8 runs.

    Full batches and all silos: the variance is the noise's alone. E F(w) - F* <= D0^2 / (eta R) + eta d sigma^2 / M.
    """
    rng = np.random.default_rng(2)
    X = rng.standard_normal((4, 400, 3))
    X /= np.linalg.norm(X, axis=2)[:, :, None]
    y = X @ [0.5, -0.3, 0.2]
    data = {f"s{i}": (X[i], y[i]) for i in range(4)}
    ridge, gaps = 0.2, []
    A, b = X.reshape(-1, 3).T @ X.reshape(-1, 3) / 1600 + ridge * np.eye(3), X.reshape(-1, 3).T @ y.ravel() / 1600
    star = np.linalg.solve(A, b)
    method = Mbsgd(rounds=None, step="theory", average="theory")
    for seed in range(8):
        federation = federate(method, data, epsilon=1.0, clip=1.0, diameter=2.0, ridge=ridge, seed=seed)
        w = federation.final() - star
        gaps.append(w @ A @ w / 2)
    phase = federation.plan.phases[0]
    step, noise = phase.settings["step"], 3 * phase.sigma**2 / 4
    assert np.mean(gaps) <= star @ star / (step * phase.rounds) + step * noise
    assert np.mean(gaps) < 0.2 * star @ A @ star / 2  # and much is learned
    assert noise > 0 and phase.rounds > 20
