"""Solvers, stage plans and whole methods against the spec's examples and second implementations of ten lines."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedcore.accounting.calibration import Budget
from fedcore.algorithms import LocalizedAccelerated, LocalizedMbsgd, Mbsgd, OnePassMbsgd
from fedcore.federation.rounds import RunContext
from fedcore.losses import Huber, Logistic
from fedcore.optim.averaging import Messages, mean_message, running_mean
from fedcore.planning.problem import SiloFacts
from fedcore.planning.stages import position, stage_plan
from fedcore.planning.theorems.localization import starting_gap
from tests.problems import problem_of

# Stage plans


def test_stage_plan_of_the_spec():
    """Section 6.2: beta_i = 0.2657, mu = 0.0157, Delta = 4, V^2 = 1e-3, R_i = 300."""
    plan = stage_plan(300, 0.2657, 0.0157, 4.0, 1e-3)
    assert [stage.rounds for stage in plan] == [24, 24, 24, 24, 44, 87, 73]
    upsilons = [0.5314] * 4 + [1.38080, 5.34109, 5.82448]
    np.testing.assert_allclose([stage.upsilon for stage in plan], upsilons, atol=6e-6)


@given(st.integers(1, 400), st.floats(0.01, 10), st.floats(1e-4, 1), st.floats(1e-6, 100), st.floats(0, 10))
def test_stage_plan_is_the_printed_procedure(R, beta, mu, gap, V2):
    plan, left, k = [], R, 1
    while left > 0:
        want = math.ceil(max(4 * math.sqrt(2 * beta / mu), 128 * V2 / (3 * mu * gap * 2.0 ** -(k + 1))))
        run = min(want, left)
        ups = max(2 * beta, math.sqrt(mu * V2 * run * (run + 1) * (run + 2) / (3 * gap * 2.0 ** -(k - 1))))
        plan, left, k = [*plan, (run, ups)], left - run, k + 1
    found = stage_plan(R, beta, mu, gap, V2)
    assert [stage.rounds for stage in found] == [run for run, _ in plan]
    np.testing.assert_allclose([stage.upsilon for stage in found], [ups for _, ups in plan], rtol=1e-12)
    flat = [(stage, r) for stage in found for r in range(1, stage.rounds + 1)]
    assert [position(found, t) for t in range(1, R + 1)] == flat
    with pytest.raises(ValueError, match="past"):
        position(found, R + 1)


@pytest.mark.parametrize("mu, gap", [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.0), (math.nan, 1.0)])
def test_stage_plan_needs_positive_constants(mu, gap):
    with pytest.raises(ValueError, match="must be > 0"):
        stage_plan(5, 1.0, mu, gap, 0.1)


def test_stage_plan_of_a_very_long_run_without_noise_ends():
    plan = stage_plan(100_000, 1.0, 1.0, 1e-3, 0.0)
    assert sum(stage.rounds for stage in plan) == 100_000
    assert {stage.upsilon for stage in plan} == {2.0}


def test_means():
    rng = np.random.default_rng(0)
    rows = list(rng.standard_normal((7, 3)))
    before = [row.copy() for row in rows]
    np.testing.assert_allclose(mean_message(Messages(enumerate(rows))), np.mean(rows, axis=0), rtol=1e-14)
    np.testing.assert_array_equal(rows, before)
    mean = np.zeros(3)
    for count, row in enumerate(rows):
        mean = running_mean(mean, count, row)
    np.testing.assert_allclose(mean, np.mean(rows, axis=0), rtol=1e-13)


def test_acceleration_trace_of_the_spec():
    """Section 6.1: d = 1, exact gradient 3 w - 1, w_0 = 1, mu = 0.5, upsilon = 6, no constraint."""
    method = LocalizedAccelerated(lam=0.5, rounds=3, max_phases=1)
    problem = problem_of((SiloFacts("a", 8),), 1, 1e3, 3.0, 1e9, 1, Budget(None))
    plan = method.plan(problem)
    phase = dataclasses.replace(plan.phases[0], settings={"stages": [[3, 6.0]]})
    state, trace = method.init(np.array([1.0])), []
    for _ in range(3):
        md = method.broadcast(state, phase)["w"]
        # The server adds the regulariser's gradient 0.5 (w_md - 1) to what the silos send.
        after = method.server_update(state, Messages({0: 3 * md - 1 - 0.5 * (md - 1.0)}), phase)
        w = after.w[0] if after.phase == 1 else np.nan
        trace.append((md[0], w, after.aggregate[0]))
        state = after
    wanted = [(1, 0.84, 0.84), (0.84, 0.61481481, 0.68987654), (0.65432099, np.nan, 0.55802469)]
    np.testing.assert_allclose(trace, wanted, atol=5e-9)
    assert (state.phase, state.round) == (2, 1)
    assert state.centre == state.w == state.aggregate


@pytest.mark.parametrize("rule", ["tight", "paper"])
def test_starting_gap_is_a_bound_on_random_problems(rule):
    rng = np.random.default_rng(11)
    closest = 0.0
    for trial in range(24):
        loss = (Logistic(), Huber(width=0.5))[trial % 2]
        X = rng.standard_normal((30, 3)) + np.array([4.0, 0, 0])
        X /= np.linalg.norm(X, axis=1)[:, None]
        y = np.where(rng.random(30) < 0.95, 1.0, -1.0) * (1.0 if loss.labels.classes else 20.0)
        lam, D, L = 10 ** rng.uniform(-3, 1), 4.0, loss.lipschitz
        centre = ball(rng.standard_normal(3), D / 2) * rng.random()

        def objective(w, loss=loss, X=X, y=y, lam=lam, centre=centre):
            pull = lam * (w - centre)
            r = X @ w
            return loss.value(r, y).mean() + pull @ pull / (2 * lam), loss.residual(r, y) @ X / 30 + pull

        inside = {"type": "ineq", "fun": lambda w: 4.0 - w @ w, "jac": lambda w: -2 * w}
        solved = minimize(objective, centre, jac=True, method="SLSQP", constraints=inside, options={"ftol": 1e-12})
        problem = problem_of((SiloFacts("a", 30),), 3, L, loss.smoothness, D, 1, Budget(1.0))
        share = (objective(centre)[0] - solved.fun) / starting_gap(problem, lam, rule)
        assert 0 <= share <= 1
        closest = max(closest, share)
    assert starting_gap(problem, 1e-9, "tight") == starting_gap(problem, 1e-9, "paper") == L * D
    assert closest > 0.5  # the bound is not idle


# Whole methods


def ball(z, r):
    return z * min(1.0, r / max(np.linalg.norm(z), 1e-300))


@pytest.fixture
def world(toy):
    """Records in the split's order for any plan without noise, and clipped mean gradients of ranges of positions."""

    def look(federation):
        ordered = {name: silo._runs["run"] for name, silo in federation.silos.items()}
        clip = federation.plan.problem.objective.clip

        def gradient(name, w, start, stop):
            X, y = ordered[name].X[start:stop], ordered[name].y[start:stop]
            g = (X @ w - y)[:, None] * X
            return (g * np.minimum(1, clip / np.linalg.norm(g, axis=1))[:, None]).mean(0)

        def mean(w, ranges):
            return np.mean([gradient(name, w, *ranges(silo.n)) for name, silo in federation.silos.items()], axis=0)

        return mean

    return look


@pytest.mark.parametrize("average", ["uniform", "last"])
def test_mbsgd_is_projected_gradient_descent(federate, toy, world, average):
    federation = federate(Mbsgd(step=0.7, rounds=9, average=average), toy, epsilon=None, diameter=1.5)
    mean, w, seen = world(federation), np.zeros(4), []
    for _ in range(9):
        w = ball(w - 0.7 * mean(w, lambda n: (0, n)), 0.75)
        seen.append(w)
    assert np.linalg.norm(w) == pytest.approx(0.75)  # the domain binds
    np.testing.assert_allclose(federation.final(), np.mean(seen, 0) if average == "uniform" else w, rtol=1e-11)


@pytest.mark.parametrize("average", ["uniform", "last"])
def test_one_pass_takes_the_next_block_each_round(federate, toy, world, average):
    federation = federate(OnePassMbsgd(step=0.7, rounds=5, average=average), toy, epsilon=None, diameter=1.5)
    mean, w, seen = world(federation), np.zeros(4), []
    for r in range(5):
        w = ball(w - 0.7 * mean(w, lambda n, r=r: (r * (n // 5), (r + 1) * (n // 5))), 0.75)
        seen.append(w)
    np.testing.assert_allclose(federation.final(), np.mean(seen, 0) if average == "uniform" else w, rtol=1e-11)


def shard(i):
    def span(n):
        start = sum(n // 2**j for j in range(1, i))
        return start, start + n // 2**i

    return span


@pytest.mark.parametrize("average", ["uniform", "last"])
def test_localized_mbsgd_by_hand(federate, toy, world, average):
    method = LocalizedMbsgd(step=0.7, rounds=(5, 4, 2), lam=0.2, exponent=1.0, average=average)
    federation = federate(method, toy, epsilon=None, diameter=1e6, clip=1.5)
    mean, centre = world(federation), np.zeros(4)
    for i, R in ((1, 5), (2, 4), (3, 2), (4, 2)):  # n = 16: four phases, the last number of rounds repeats
        lam = 0.2 * 2 ** (i - 1)
        w, seen = centre, []
        for _ in range(R):
            g = mean(w, shard(i)) + lam * (w - centre)
            w = w - g / (1 / 0.7 + lam)
            assert np.linalg.norm(w - centre) < 2 * 1.5 / lam  # the ball does not bind here
            seen.append(w)
        centre = np.mean(seen, 0) if average == "uniform" else w
    np.testing.assert_allclose(federation.final(), centre, rtol=1e-11)


def test_localized_accelerated_by_hand(federate, toy, world):
    lam1, beta, L, D = 0.05, 2.0, 1.5, 1e6
    method = LocalizedAccelerated(rounds=(70, 40, 30, 20), lam=lam1, exponent=2.0)
    federation = federate(method, toy, epsilon=None, diameter=D, clip=L, smoothness=beta)
    mean, q = world(federation), np.zeros(4)
    stages = 0
    for i, R in ((1, 70), (2, 40), (3, 30), (4, 20)):
        mu = lam1 * 4 ** (i - 1)
        centre, left = q, R
        while left:
            run = min(left, math.ceil(4 * math.sqrt(2 * (beta + mu) / mu)))  # V^2 = 0: no noise, M = N, full batch
            ups, w, ag = 2 * (beta + mu), q, q
            for r in range(1, run + 1):
                a, eta = 2 / (r + 1), 4 * ups / (r * (r + 1))
                den = eta + (1 - a * a) * mu
                md = (1 - a) * (mu + eta) / den * ag + a * ((1 - a) * mu + eta) / den * w
                g = mean(md, shard(i)) + mu * (md - centre)
                w = (a * mu * md + ((1 - a) * mu + eta) * w - a * g) / (mu + eta)
                ag = a * w + (1 - a) * ag
            q, left, stages = ag, left - run, stages + 1
    assert stages > 6
    np.testing.assert_allclose(federation.final(), q, rtol=1e-9)


@pytest.mark.parametrize("kind", [LocalizedMbsgd, LocalizedAccelerated])
def test_each_phase_without_noise_solves_its_regularised_problem(federate, kind):
    """Closed form: w_i = (A + lam_i I)^-1 (b + lam_i w_{i-1}); each silo repeats one record: all shards are equal."""
    rng = np.random.default_rng(12)
    X, y = rng.standard_normal((5, 3)), rng.standard_normal(5)
    data = {f"s{i}": (np.tile(X[i], (8, 1)), np.full(8, y[i])) for i in range(5)}
    hyper = {"step": 0.5, "average": "last"} if kind is LocalizedMbsgd else {}
    method = kind(lam=0.5, exponent=1.0, rounds=500, **hyper)
    federation = federate(method, data, epsilon=None, clip=1e3, diameter=1e4, smoothness=(X**2).sum(1).max())
    A, b, w, ends = X.T @ X / 5, X.T @ y / 5, np.zeros(3), []
    for lam in (0.5, 1.0, 2.0):
        w = np.linalg.solve(A + lam * np.eye(3), b + lam * w)
        ends.append(w)
    found = [method.output(state) for _, _, state in federation.play() if state.round == 1]
    np.testing.assert_allclose(found, ends, atol=1e-9)


def test_accelerated_stays_below_its_error_bound_with_noise(federate):
    """Section 6.1: `E gap <= 2 ups |w_0 - w*|^2 / (R(R+1)) + 4 V^2 (R+2) / (3 ups)`, mean of 40 runs on a quadratic."""
    R, beta, ups, sigma, d = 30, 1.0, 4.0, 0.3, 10
    method = LocalizedAccelerated(lam=1e-6, rounds=R, max_phases=1)
    problem = problem_of((SiloFacts("a", 8),), d, 1e3, beta, 1e9, 1, Budget(None))
    phase = dataclasses.replace(method.plan(problem).phases[0], settings={"stages": [[R, ups]]})
    curvature = np.linspace(0.05, 1.0, d)
    star = np.ones(d)
    rng, gaps = np.random.default_rng(1), []
    for _ in range(40):
        state = method.init(np.zeros(d))
        while state.phase == 1:
            md = method.broadcast(state, phase)["w"]
            messages = Messages({0: curvature * (md - star) + sigma * rng.standard_normal(d)})
            state = method.server_update(state, messages, phase)
        gaps.append((curvature * (state.aggregate - star) ** 2).sum() / 2)
    bound = 2 * ups * d / (R * (R + 1)) + 4 * d * sigma**2 * (R + 2) / (3 * ups)
    assert np.mean(gaps) <= bound


def test_no_course_goes_past_the_plan(federate, toy):
    federation = federate(LocalizedMbsgd(rounds=1, max_phases=2), toy)
    played = [(query.phase, query.round, state) for query, _, state in federation.play()]
    assert [address[:2] for address in played] == [(1, 1), (2, 1)]
    state = played[-1][2]
    context: RunContext = federation.context
    assert context.phase(state) is None and context.query(state) is None
    assert list(federation.play(state)) == []
