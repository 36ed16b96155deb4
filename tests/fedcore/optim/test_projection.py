"""Projections and prox steps against optimality conditions, Dykstra's algorithm and a general solver."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize, nnls

from fedcore.optim.acceleration import AccelerationCoefficients
from fedcore.optim.projection import onto_ball, onto_domain, onto_lens


def naive_ball(z, c, r):
    distance = np.linalg.norm(z - c)
    return z.copy() if distance <= r else c + (z - c) * r / distance


def dykstra(z, c1, r1, c2, r2, sweeps=3000):
    x, p, q = z.copy(), np.zeros_like(z), np.zeros_like(z)
    for _ in range(sweeps):
        y = naive_ball(x + p, c1, r1)
        p = x + p - y
        x = naive_ball(y + q, c2, r2)
        q = y + q - x
    return x


def by_solver(z, c1, r1, c2, r2):
    balls = [
        {"type": "ineq", "fun": lambda v, c=c, r=r: r**2 - ((v - c) ** 2).sum(), "jac": lambda v, c=c: -2 * (v - c)}
        for c, r in ((c1, r1), (c2, r2))
    ]
    start = c2 if np.linalg.norm(c2 - c1) < r1 else (c1 + c2) / 2
    options = {"ftol": 1e-15, "maxiter": 500}
    return minimize(lambda v: ((v - z) ** 2).sum(), start, constraints=balls, method="SLSQP", options=options).x


def lenses(count, seed, d=4):
    """Random (z, c1, r1, c2, r2) with c2 in the first ball, as the centre of a phase is in W."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        c1, u = rng.standard_normal((2, d))
        r1 = rng.uniform(0.5, 2.0)
        c2 = c1 + u / np.linalg.norm(u) * r1 * rng.uniform(0.3, 1.0)
        yield c1 + 3 * rng.standard_normal(d), c1, r1, c2, r1 * rng.uniform(0.2, 1.2)


def check_optimal(z, c1, r1, c2, r2, p):
    """p lies in both balls, and z - p is a nonnegative combination of the outward normals of those that it touches."""
    tolerance = 1e-12 * (1 + r1 + r2)
    normals, scale = [], max(1.0, float(np.linalg.norm(z - p)))
    for c, r in ((c1, r1), (c2, r2)):
        distance = np.linalg.norm(p - c)
        assert distance <= r + tolerance
        if distance >= r - 10 * tolerance:
            normals.append((p - c) / distance)
    if np.linalg.norm(z - p) > 10 * tolerance:
        _, residual = nnls(np.array(normals).T, z - p)
        assert residual <= 1e-8 * scale


def test_lens_satisfies_the_optimality_conditions():
    corners = 0
    for lens in lenses(400, 1):
        p = onto_lens(*lens)
        check_optimal(*lens, p)
        _, c1, r1, c2, r2 = lens
        corners += abs(np.linalg.norm(p - c1) - r1) < 1e-9 and abs(np.linalg.norm(p - c2) - r2) < 1e-9
    assert corners > 50  # both constraints active: the hard case


def test_lens_agrees_with_dykstra_and_with_a_general_solver():
    for lens in lenses(12, 2):
        np.testing.assert_allclose(onto_lens(*lens), dykstra(*lens), atol=1e-6)
        np.testing.assert_allclose(onto_lens(*lens), by_solver(*lens), atol=1e-5)


def test_one_ball_after_the_other_is_not_the_projection():
    z, c1, c2 = np.array([2.0, 2.0]), np.zeros(2), np.array([1.0, 0.0])
    p = onto_lens(z, c1, 1.0, c2, 0.5)
    wrong = onto_ball(onto_ball(z, c1, 1.0), c2, 0.5)
    # Unit circle and circle of radius 1/2 around (1, 0) meet at x = 7/8, y = sqrt(15)/8.
    np.testing.assert_allclose(p, [7 / 8, math.sqrt(15) / 8], rtol=1e-14)
    assert np.linalg.norm(z - p) < np.linalg.norm(z - wrong) or np.linalg.norm(wrong) > 1


@pytest.mark.parametrize(
    "z, c2, r2, wanted",
    [
        pytest.param([3.0, 0.0], [0.5, 0.0], 0.25, [0.75, 0.0], id="nested, z on the axis"),
        pytest.param([3.0, 0.0], [1.0, 0.0], 0.25, [1.0, 0.0], id="z on the axis beyond both"),
        pytest.param([-3.0, 0.0], [1.0, 0.0], 0.25, [0.75, 0.0], id="z on the axis behind"),
        pytest.param([0.9, 0.1], [1.0, 0.0], 0.25, [0.9, 0.1], id="inside both"),
        pytest.param([0.0, 7.0], [0.0, 0.0], 0.25, [0.0, 0.25], id="one centre"),
        pytest.param([0.0, 7.0], [0.0, 0.0], 1.0, [0.0, 1.0], id="one ball twice"),
        pytest.param([0.0, 7.0], [0.0, 0.0], math.inf, [0.0, 1.0], id="the second does not bind"),
        pytest.param([5.0, 1.0], [2.0, 0.0], 1.0, [1.0, 0.0], id="the balls touch in a point"),
        pytest.param([0.3, 9.0], [0.0, 0.0], 0.0, [0.0, 0.0], id="a ball of one point"),
    ],
)
def test_degenerate_lenses(z, c2, r2, wanted):
    found = onto_lens(np.array(z), np.zeros(2), 1.0, np.array(c2), r2)
    np.testing.assert_allclose(found, wanted, atol=1e-7 if c2 == [2.0, 0.0] else 1e-12)


def test_balls_that_do_not_meet_are_refused():
    with pytest.raises(ValueError, match="do not meet"):
        onto_lens(np.array([0.5, 3.0]), np.zeros(2), 1.0, np.array([3.0, 0.0]), 1.0)


@pytest.mark.parametrize("depth", [0.0, 1e-3, 0.3, 0.999])
@pytest.mark.parametrize("radius", [1e-2, 1e-4, 1e-6, 1e-8])
def test_tiny_ball_at_the_edge_of_the_domain(radius, depth):
    """Late phases: the centre is on or near the boundary of W and D_i is 1e-6 of D. Relative to D_i, not to D."""
    rng = np.random.default_rng(8)
    for _ in range(100):
        u = rng.standard_normal(4)
        centre = u / np.linalg.norm(u) * (5.0 - depth * radius)
        offset = rng.standard_normal(4) * radius * 3
        p = onto_domain(centre + offset, 10.0, centre, radius)
        # Radii and the centre itself are rounded: float64 resolves 1e-15 of D.
        assert np.linalg.norm(p - centre) <= radius * (1 + 1e-9) + 5e-15
        assert np.linalg.norm(p) <= 5.0 * (1 + 1e-15) + 1e-15
        # Seen from so near the domain is a half-space, up to a curvature of radius^2 / 10.
        n, limit = centre / np.linalg.norm(centre), depth * radius
        v = offset - max(offset @ n - limit, 0.0) * n
        if np.linalg.norm(v) > radius:
            v = offset * radius / np.linalg.norm(offset)
            if v @ n > limit:
                flat = offset - (offset @ n) * n
                v = limit * n + flat / np.linalg.norm(flat) * math.sqrt(radius**2 - limit**2)
        np.testing.assert_allclose(p, centre + v, rtol=0, atol=radius * (2 * radius + 1e-7) + 5e-14)


@given(st.floats(0.01, 100), st.lists(st.floats(-50, 50), min_size=3, max_size=3))
def test_onto_ball_and_an_inactive_domain(radius, z):
    z, c = np.array(z), np.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(onto_ball(z, c, radius), naive_ball(z, c, radius), rtol=1e-12)
    assert onto_ball(z, c, math.inf) is z
    inside = naive_ball(c, np.zeros(3), radius / 2)
    found = onto_domain(z, radius, inside, radius)  # D_i >= D: only W is left
    np.testing.assert_allclose(found, naive_ball(z, np.zeros(3), radius / 2), rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(onto_domain(z, radius, inside, math.inf), found)


# Prox steps


def prox_objective(v, g, md, w, alpha, mu, eta):
    return alpha * (g @ v + mu / 2 * ((md - v) ** 2).sum()) + ((1 - alpha) * mu / 2 + eta / 2) * ((w - v) ** 2).sum()


@pytest.mark.parametrize("mu", [0.0, 0.3, 50.0])
@pytest.mark.parametrize("r", [1, 2, 9])
def test_prox_step_minimises_its_objective_over_the_set(r, mu):
    rng = np.random.default_rng(10 * r + int(mu))
    for z, c1, r1, c2, r2 in lenses(6, r):
        upsilon = rng.uniform(0.5, 3.0)
        alpha, eta = 2 / (r + 1), 4 * upsilon / (r * (r + 1))
        g, md, w = 4 * rng.standard_normal(4), onto_lens(z, c1, r1, c2, r2), c2
        step = AccelerationCoefficients.at(r, upsilon, mu)
        free = step.unprojected(md, w, g)
        # Unconstrained: the gradient of the objective vanishes.
        gradient = alpha * (g + mu * (free - md)) + ((1 - alpha) * mu + eta) * (free - w)
        np.testing.assert_allclose(gradient, 0, atol=1e-12 * (1 + mu))
        p = onto_lens(free, c1, r1, c2, r2)
        value = prox_objective(p, g, md, w, alpha, mu, eta)
        balls = [
            {"type": "ineq", "fun": lambda v, c=c, s=s: s**2 - ((v - c) ** 2).sum(), "jac": lambda v, c=c: -2 * (v - c)}
            for c, s in ((c1, r1), (c2, r2))
        ]
        solved = minimize(
            prox_objective,
            c2,
            args=(g, md, w, alpha, mu, eta),
            constraints=balls,
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 300},
        )
        assert value <= solved.fun + 1e-6 * (1 + abs(solved.fun))
        # No feasible point does better: random points of the set, projected naively by Dykstra's algorithm.
        for _ in range(5):
            other = dykstra(p + 0.3 * rng.standard_normal(4), c1, r1, c2, r2, 400)
            assert value <= prox_objective(other, g, md, w, alpha, mu, eta) + 1e-6 * (1 + abs(value))


@pytest.mark.parametrize("r", [1, 2, 5, 100])
@pytest.mark.parametrize("mu", [0.0, 0.5, 1e4])
def test_query_point_is_a_convex_combination(r, mu):
    step = AccelerationCoefficients.at(r, 2.0, mu)
    share = float(step.middle(np.array([1.0]), np.array([0.0]))[0])
    alpha, eta = 2 / (r + 1), 8.0 / (r * (r + 1))
    den = eta + (1 - alpha**2) * mu
    assert share == pytest.approx((1 - alpha) * (mu + eta) / den, rel=1e-13, abs=1e-15)
    assert 1 - share == pytest.approx(alpha * ((1 - alpha) * mu + eta) / den, rel=1e-12)
    assert -1e-15 <= share <= 1 + 1e-15


def test_a_ball_between_half_of_the_diameter_and_all_of_it_binds():
    """The centre lies in W at its edge, the point at the opposite edge: a diameter away, farther than the radius."""
    centre, z = np.array([2.0, 0.0]), np.array([-2.0, 0.0])
    for radius in (2.0, 2.4, 3.9):
        assert onto_domain(z, 4.0, centre, radius) == pytest.approx([2.0 - radius, 0.0])


@pytest.mark.parametrize("radius", [0.5, 1.0, 2.0, 2.4, 4.0, 7.0, math.inf])
def test_whatever_the_radius_a_result_keeps_to_half_of_the_diameter(radius):
    """A domain of diameter 4, by hand: outward steps end at 2, or at the ball around the centre."""
    for at in (2.0, 1.0, 0.0):
        centre, wanted = np.array([at, 0.0]), min(2.0, at + radius)
        for z in (wanted + 1e-3, 3.0, 50.0):
            assert onto_domain(np.array([z, 0.0]), 4.0, centre, radius) == pytest.approx([wanted, 0.0], abs=1e-12)
    for side in ([0.0, 3.0], [0.0, -3.0]):
        assert np.linalg.norm(onto_domain(np.array(side), 4.0, np.zeros(2), radius)) == pytest.approx(min(2.0, radius))
