"""Minimisers of cubic models, against scipy's descent and the conditions that only a minimiser meets; noised steps."""

import numpy as np
import pytest
from scipy.optimize import minimize

from fedcore.optim.cubic import cubic_minimiser
from fedcore.optim.cubic_descent import noised_descent, step_lengths


def model(g, H, M):
    def value(v):
        return g @ v + 0.5 * v @ H @ v + M / 6 * np.linalg.norm(v) ** 3

    def slope(v):
        return g + H @ v + 0.5 * M * np.linalg.norm(v) * v

    return value, slope


def drawn(number):
    """Of sizes over six orders; every tenth is the hard case, without a part of g along the lowest curvature."""
    rng = np.random.default_rng(number)
    d = int(rng.integers(1, 9))
    A = rng.standard_normal((d, d))
    H, M = (A + A.T) * 10.0 ** rng.uniform(-3, 3), 10.0 ** rng.uniform(-3, 3)
    g = rng.standard_normal(d) * 10.0 ** rng.uniform(-6, 3)
    if number % 10 == 0:
        _, vectors = np.linalg.eigh(H)
        g = g - vectors[:, 0] * (vectors[:, 0] @ g)
    return g, H, M


@pytest.mark.minutes
def test_no_descent_of_scipy_finds_less_on_a_thousand_cubics_of_any_curvature():
    rng, indefinite = np.random.default_rng(0), 0
    for number in range(1000):
        g, H, M = drawn(number)
        value, slope = model(g, H, M)
        v = cubic_minimiser(g, H, M)
        length = np.linalg.norm(v)
        scale = np.linalg.norm(g) + np.linalg.norm(H, 2) * length + M * length**2
        assert np.linalg.norm(slope(v)) <= 1e-13 * scale
        # Global, of whatever curvature (Nesterov and Polyak 2006): no eigenvalue of H + M |v| / 2 is below 0.
        lowest = np.linalg.eigvalsh(H)[0]
        assert lowest + 0.5 * M * length >= -1e-9 * (np.abs(H).max() + M * length)
        indefinite += lowest < 0
        starts = [v + (length + 1e-9) * rng.standard_normal(v.size), np.zeros(v.size) + 1e-6]
        found = min(minimize(value, start, jac=slope, method="BFGS").fun for start in starts)
        assert value(v) <= found + 1e-12 * abs(found)
    assert indefinite > 800


def test_a_gradient_of_zero_stays_where_curvature_is_positive_and_leaves_where_it_is_not():
    assert not cubic_minimiser(np.zeros(3), np.eye(3), 2.0).any()
    v = cubic_minimiser(np.zeros(2), np.diag([-3.0, 1.0]), 2.0)  # -3 r^2 / 2 + r^3 / 3 is least at r = 3
    np.testing.assert_allclose(np.abs(v), [3.0, 0.0], atol=1e-12)


@pytest.mark.parametrize("weight", [0.0, -1.0, np.nan])
def test_a_weight_that_is_not_above_zero_is_refused(weight):
    with pytest.raises(ValueError, match="above 0"):
        cubic_minimiser(np.ones(2), np.eye(2), weight)


@pytest.mark.parametrize("points, answer", [(1, 0.0), (2, -2 / 3), (3, -1 / 2), (4, -1 / 2)])
def test_the_average_of_noised_steps_is_that_of_the_published_solver(points, answer):
    """One weight, g = 1, H = 2, mu = 1: iterates 0, -1, -1/3, -1/2 (spec dp-fcrn 5.2)."""
    v = noised_descent(lambda v: 1.0 + 2.0 * v, 1, points, step_lengths(points, 1.0, 0.0), 0.0, 1e9)
    assert v[0] == pytest.approx(answer, abs=1e-15)


def test_without_curvature_each_gradient_counts_as_the_closed_form_says():
    """`theta_0 - sum_r A_r (g + b_r)` with `A_r = 2 / (mu (r + 2)) (1 - (r + 1) (r + 2) / (tau (tau + 1)))`."""
    points, mu, rng = 7, 0.4, np.random.default_rng(3)
    noised = rng.standard_normal((points - 1, 5))
    answers = iter(noised)
    v = noised_descent(lambda v: next(answers), 5, points, step_lengths(points - 1, mu, 0.0), 0.0, 1e9)
    r = np.arange(points - 1)
    A = 2 / (mu * (r + 2)) * (1 - (r + 1) * (r + 2) / (points * (points + 1)))
    np.testing.assert_allclose(v, -A @ noised, rtol=1e-13)


def test_many_capped_steps_come_to_the_exact_minimiser_within_the_ball():
    rng = np.random.default_rng(1)
    B = rng.standard_normal((6, 4))
    g, H, M = rng.standard_normal(4), B.T @ B, 1.3
    exact = cubic_minimiser(g, H, M)
    steps = step_lengths(8000, 0.0, np.linalg.eigvalsh(H)[-1] + M * 2 * np.linalg.norm(exact))
    v = noised_descent(lambda v: g + H @ v, 4, 8000, steps, M, 2 * np.linalg.norm(exact))
    np.testing.assert_allclose(v, exact, atol=2e-3 * np.linalg.norm(exact))
    held = noised_descent(lambda v: g + H @ v, 4, 200, steps, M, 0.1 * np.linalg.norm(exact))
    assert np.linalg.norm(held) <= 0.1 * np.linalg.norm(exact) * (1 + 1e-12)


def test_a_ridge_is_counted_from_its_own_point_and_takes_no_part_in_answers():
    one = noised_descent(lambda v: np.ones(2), 2, 6, [0.3] * 5, 0.5, 10.0, (0.7, np.array([1.0, -2.0])))
    other = noised_descent(lambda v: np.ones(2) + 0.7 * (np.array([1.0, -2.0]) + v), 2, 6, [0.3] * 5, 0.5, 10.0)
    np.testing.assert_allclose(one, other, rtol=1e-13)


def test_steps_without_a_length_are_refused():
    with pytest.raises(ValueError, match="no length"):
        step_lengths(3, 0.0, 0.0)
    assert step_lengths(3, 1.0, 3.0) == [1 / 3, 1 / 3, 1 / 3]
    assert step_lengths(3, 1.0, 0.0) == [1.0, 2 / 3, 0.5]
