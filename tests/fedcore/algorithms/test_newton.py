"""Methods of second order: against a plain Newton's method; their messages, disclosures and refusals."""

import math
from itertools import pairwise

import numpy as np
import pytest

from fedcore.algorithms import DpFcrn, NoisedNewton
from fedcore.errors import InputError, SiloError
from fedcore.losses import Logistic
from fedcore.models import SoftmaxRegression
from fedcore.optim.cubic import cubic_minimiser
from fedcore.optim.random_mask import random_mask
from fedcore.planning.sensitivity.second_order import half_diameter
from tests import gaussian_curve

SMOOTH = {"loss": Logistic(), "smoothness": 0.25, "diameter": 1e3}


@pytest.fixture
def silos():
    """Two unlike silos, features of norm at most 1, labels of a steep logistic model."""
    rng, data = np.random.default_rng(3), {}
    for name, n in (("a", 60), ("b", 80)):
        X = rng.standard_normal((n, 5)) + (name == "b")
        X /= np.linalg.norm(X, axis=1).max()
        data[name] = X, np.where(rng.random(n) < 1 / (1 + np.exp(-4 * X[:, 0])), 1.0, -1.0)
    return data


def gradient(w, X, y):
    return X.T @ (-y / (1 + np.exp(y * (X @ w)))) / len(y)


def hessian(w, X, y):
    p = 1 / (1 + np.exp(-X @ w))
    return (X * (p * (1 - p))[:, None]).T @ X / len(y)


def mean(of, w, silos):
    return np.mean([of(w, X, y) for X, y in silos.values()], axis=0)


@pytest.mark.parametrize("cubic, rounds", [(0.0, 7), (0.0962, 14)])
def test_without_noise_it_is_newtons_method_and_converges_quadratically(federate, silos, cubic, rounds):
    method = NoisedNewton(rounds=rounds, hessians="last", cubic=cubic)
    w, gaps = np.zeros(5), []
    for _, _, state in federate(method, silos, epsilon=None, ridge=1e-2, **SMOOTH).play():
        g, H = mean(gradient, w, silos) + 1e-2 * w, mean(hessian, w, silos) + 1e-2 * np.eye(5)
        w = w + (cubic_minimiser(g, H, cubic) if cubic else -np.linalg.solve(H, g))
        np.testing.assert_allclose(state.w, w, rtol=1e-9)
        gaps.append(float(np.linalg.norm(mean(gradient, w, silos) + 1e-2 * w)))
    assert gaps[-1] < 1e-12
    # Each gap is at most a multiple of the square of the one before: digits double.
    quadratic = [later / earlier**2 for earlier, later in pairwise(gaps) if later > 1e-14]
    assert max(quadratic[-3:]) < 300


def test_between_rounds_with_hessians_steps_go_by_the_mean_of_those_before(federate, silos):
    federation = federate(NoisedNewton(rounds=5, period=2), silos, epsilon=None, **SMOOTH)
    w, seen = np.zeros(5), []
    for query, releases, state in federation.play():
        if query.round % 2:
            seen.append(mean(hessian, w, silos))
            assert {len(release.payload) for release in releases} == {5 + 15}
        else:
            assert {len(release.payload) for release in releases} == {5}
        w = w - np.linalg.solve(np.mean(seen, axis=0), mean(gradient, w, silos))
        np.testing.assert_allclose(state.w, w, rtol=1e-8)


@pytest.mark.parametrize("period, both", [(1, 6), (4, 2), (6, 1)])
def test_all_answers_together_spend_what_the_plan_says(federate, silos, period, both):
    n, C, balance, delta = 60, 0.8, 2.5, 1e-3
    method = NoisedNewton(rounds=6, period=period, balance=balance)
    federation = federate(method, silos, epsilon=1.3, delta=delta, clip=C, **SMOOTH)
    sigma = federation.plan.phases[0].by_silo["a"].sigma
    assert {kind.by_silo["a"].sigma for kind in federation.plan.phases[0].kinds} == {sigma}
    squared = both * (2 * half_diameter(C, balance)) ** 2 + (6 - both) * (2 * C) ** 2
    mu = math.sqrt(squared) * (1 + 1e-6) / (n * sigma)
    assert gaussian_curve.epsilon_by_hand(mu, delta) == pytest.approx(1.3, rel=1e-6)
    assert federation.plan.silo_epsilon("a") == pytest.approx(1.3, rel=1e-9)
    federation.final()
    spent = [row.event for row in federation.silos["a"].ledger.rows("run")]
    assert math.fsum(event.gdp_mu_squared for event in spent) == pytest.approx(mu**2, rel=1e-9)


def test_noise_that_hides_curvature_lengthens_no_step(federate, silos):
    """With a tiny budget the noised Hessian is all noise: steps are about the gradient divided by the noise's size."""
    for seed in range(5):
        federation = federate(NoisedNewton(rounds=3), silos, epsilon=0.01, delta=1e-3, seed=seed, **SMOOTH)
        for _, releases, state in federation.play():
            assert np.isfinite(state.w).all()
            noise = np.mean([release.payload[:5] for release in releases], axis=0)
        # Over 60 seeds 6 to 40; a step that nothing holds ends at the edge of the domain, at 500.
        assert np.linalg.norm(state.w) < 100 and np.linalg.norm(noise) > 1


@pytest.mark.parametrize(
    "loss, smoothness, message", [(SoftmaxRegression(3), 0.5, "linear model"), (Logistic(), math.inf, "smoothness")]
)
def test_other_models_and_losses_without_a_hessian_are_refused(federate, silos, loss, smoothness, message):
    with pytest.raises((InputError, SiloError), match=message):
        federate(NoisedNewton(), silos, loss=loss, smoothness=smoothness, diameter=10.0)


def test_a_silo_sends_what_it_keeps_and_the_server_puts_it_where_it_belongs(federate, silos):
    method = DpFcrn(rounds=2, kept=0.4, radius=5.0)
    federation = federate(method, silos, epsilon=None, clip=10.0, **SMOOTH)
    w = np.zeros(5)
    for query, releases, state in federation.play():
        steps = []
        for release in releases:
            mask = random_mask(0, release.silo, 1, query.round, 5, 2) > 0
            X, y = silos[release.silo]
            g, H = gradient(w, X, y)[mask], hessian(w, X, y)[np.ix_(mask, mask)]
            np.testing.assert_allclose(release.payload, naive_solver(g, H, 8, 1 / (0.25 + 5.0), 1.0), rtol=1e-10)
            whole = np.zeros(5)
            whole[mask] = release.payload * 5 / 2
            steps.append(whole)
        w = w + np.mean(steps, axis=0)
        np.testing.assert_allclose(state.w, w, rtol=1e-10)


def naive_solver(g, H, points, step, M):
    """GMSolver of the spec (dp-fcrn 5.2) on the whole loss, without noise."""
    theta, total = np.zeros(g.size), np.zeros(g.size)
    for s in range(points):
        total += 2 * (s + 1) / (points * (points + 1)) * theta
        theta = theta - step * (g + H @ theta + 0.5 * M * np.linalg.norm(theta) * theta)
    return total


def test_many_inner_steps_of_equal_silos_are_newtons_method(federate, silos):
    """k = d, no noise, and a solver that comes near the exact one: cubic Newton steps of the common loss."""
    data = {"a": silos["a"], "c": silos["a"]}
    method = DpFcrn(rounds=4, local_steps=3000, cubic=0.5, radius=4.0)
    w = np.zeros(5)
    for _, _, state in federate(method, data, epsilon=None, ridge=0.05, clip=10.0, **SMOOTH).play():
        X, y = data["a"]
        w = w + cubic_minimiser(gradient(w, X, y) + 0.05 * w, hessian(w, X, y) + 0.05 * np.eye(5), 0.5)
        np.testing.assert_allclose(state.w, w, atol=2e-2 * np.linalg.norm(w))
        w = state.w


def test_published_noise_spends_more_than_it_claims_where_one_record_serves_a_round(federate, silos):
    """The spec's table in small: equation 7 against the accountant, one record for all answers of a round."""
    method = DpFcrn(rounds=4, local_steps=3, sampling="record")
    plan = federate(method, silos, epsilon=0.8, delta=1e-3, calibration="paper", **SMOOTH).plan
    (phase,) = plan.phases
    share = phase.by_silo["a"]
    sigma = math.sqrt(160 * 3 * 4 * math.log(1.25 / 1e-3)) * phase.question.clip / (0.8 * 60)
    assert share.sigma == pytest.approx(sigma, rel=1e-9) and share.epsilon_paper == pytest.approx(0.8)
    (event,) = plan.silo_events("a")
    assert (event.count, event.rate, event.sampling) == (4, 1 / 60, "without-replacement")
    assert event.sensitivity == pytest.approx(2 * phase.question.clip * math.sqrt(2) * (1 + 1e-6))


def test_answers_of_a_round_are_about_one_record(federate, silos):
    """Without noise and steps too short to move anything, both answers are one record's gradient."""
    method = DpFcrn(rounds=3, local_steps=3, sampling="record", radius=1e-9, bound=10.0)
    federation = federate(method, silos, epsilon=None, clip=10.0, **SMOOTH)
    (silo, X, y) = federation.silos["a"], *silos["a"]
    parts = -y[:, None] / 2 * X  # gradients at 0
    for query in federation.queries():
        (release, _) = federation.ask(query)
        direction = -release.payload / np.linalg.norm(release.payload)
        cosines = parts @ direction / np.linalg.norm(parts, axis=1)
        assert cosines.max() > 1 - 1e-6
    assert silo.ledger.rows("run")[0].event.count == 1


@pytest.mark.parametrize(
    "method, calibration, message",
    [
        (NoisedNewton(), "paper", "no paper has this method; choose exact"),
        (DpFcrn(), "paper", "for one record a round; choose exact, or paper with algorithm.sampling = record"),
        (DpFcrn(sampling="record"), "experiments", "for one record a round"),
        (NoisedNewton(rounds=2, period=3), "exact", r"algorithm\.period = 3 must be at most algorithm\.rounds = 2"),
        (DpFcrn(step_rule="paper"), "exact", r"needs algorithm\.convexity, or model\.ridge, above 0"),
    ],
)
def test_what_has_no_noise_or_no_schedule_is_refused_in_a_sentence(federate, silos, method, calibration, message):
    with pytest.raises(InputError, match=message):
        federate(method, silos, epsilon=0.8, calibration=calibration, **SMOOTH)


def test_published_noise_is_refused_where_its_formula_is_not_stated(federate, silos):
    with pytest.raises(InputError, match=r"privacy\.epsilon = 2 is outside the range of equation 7"):
        federate(DpFcrn(sampling="record"), silos, epsilon=2.0, calibration="paper", **SMOOTH)


def test_models_of_too_many_weights_for_hessians_are_refused(federate):
    data = {"a": (np.zeros((8, 1001)), np.ones(8))}
    with pytest.raises(InputError, match="at most 1,000 weights: of 1,001 a silo would send 502,502 numbers"):
        federate(NoisedNewton(), data, **SMOOTH)
