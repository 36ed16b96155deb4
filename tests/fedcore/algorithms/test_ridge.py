"""The ridge term: outside of clipping and of every event, in the schedules' constants, with known minimisers."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression, Ridge

from fedcore.algorithms import ALGORITHMS, LocalizedAccelerated, LocalizedMbsgd, Mbsgd, MbSubgradient
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import run_id
from fedcore.experiment.problem import make_problem
from fedcore.losses import Logistic
from fedcore.optim.regularised import regularised
from fedcore.planning.problem import SiloFacts
from fedcore.planning.theorems.localization import localization, starting_gap, theory_rounds
from tests.problems import changed_phase

FAST = {key: {"rounds": 4} for key in ["mbsgd", "mb-subgradient", "one-pass-mbsgd", "one-pass-accelerated-mbsgd"]}


def blobs(silos=4, n=50, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((silos, n, d))
    y = np.where(X @ [1.0, -2.0, 0.5] + rng.logistic(size=(silos, n)) > 0, 1.0, -1.0)
    return {f"s{i}": (X[i], y[i]) for i in range(silos)}, X.reshape(-1, d), y.ravel()


@pytest.mark.parametrize("ridge", [0.01, 0.5])
def test_squared_loss_reaches_the_ridge_regression_of_scikit_learn(federate, ridge):
    """Its objective, the sum of `(z - y)^2` plus `alpha |w|^2`, is ours times 2 n at alpha = n ridge."""
    data, X, y = blobs()
    found = federate(
        Mbsgd(step=0.5, rounds=400, average="last"), data, epsilon=None, clip=1e6, diameter=100.0, ridge=ridge
    ).final()
    wanted = Ridge(alpha=len(y) * ridge, fit_intercept=False, solver="cholesky", tol=1e-12).fit(X, y).coef_
    np.testing.assert_allclose(found, wanted, rtol=1e-9)


@pytest.mark.parametrize("method", [Mbsgd(step=1.0, rounds=600, average="last"), MbSubgradient(rounds=4000, lam=1e-9)])
def test_logistic_loss_reaches_the_logistic_regression_of_scikit_learn(federate, method):
    """Its objective is the sum of losses + |w|^2 / (2 C): ours, times n, at C = 1 / (n ridge)."""
    ridge, (data, X, y) = 0.05, blobs()
    found = federate(
        method,
        data,
        epsilon=None,
        loss=Logistic(),
        clip=1e6,
        smoothness=0.25 * (X**2).sum(1).max(),
        diameter=20.0,
        ridge=ridge,
    ).final()
    model = LogisticRegression(C=1 / (len(y) * ridge), fit_intercept=False, solver="newton-cholesky", tol=1e-12)
    wanted = model.fit(X, y).coef_[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-8 if isinstance(method, Mbsgd) else 1e-3)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_it_changes_no_event_and_no_first_answer(federate, name):
    """Clipping and noise are those without it; so are the silos' answers up to the noise's key, the plan's digest."""
    method, (data, _, _) = ALGORITHMS[name](**FAST.get(name, {})), blobs(n=16)
    plans = [federate(method, data, ridge=ridge, clip=0.5).plan for ridge in (0.0, 0.3)]
    for silo in data:
        first, second = (plan.phases[0].event(silo, 1) for plan in plans)
        assert (first.sensitivity, first.start, first.stop) == (second.sensitivity, second.start, second.stop)
        if plans[0].rounds == plans[1].rounds:
            assert plans[0].silo_events(silo) == plans[1].silo_events(silo)
        assert plans[1].silo_epsilon(silo) <= 1.0
    assert plans[0].digest != plans[1].digest
    sent = []
    for ridge in (0.0, 0.3):
        federation = federate(method, data, epsilon=None, clip=0.5, ridge=ridge)
        first = federation.ask(federation.context.query(federation.start))
        sent.append([release.payload for release in first])
    # The split and samples depend on the plan's digest too, so answers are equal only if they cover all records.
    one = method.sends_sums or not method.several_answers  # Later local steps include the ridge term's effect.
    if (
        one
        and plans[0].phases[0].n == 16
        and plans[0].phases[0].rate == 1
        and not plans[0].phases[0].schedule.fresh_blocks
    ):
        np.testing.assert_allclose(sent[0], sent[1], rtol=1e-12)


def test_the_direction_by_hand_and_none_without_weights(federate):
    data, _, _ = blobs()
    phase = federate(Mbsgd(), data, ridge=0.25).plan.phases[0]
    gradient, w, centre = np.array([1.0, 2, 3]), np.array([4.0, -8, 0]), np.array([1.0, 1, 1])
    np.testing.assert_array_equal(regularised(gradient, w, centre, phase), [2, 0, 3])
    both = changed_phase(phase, lam=0.5)
    np.testing.assert_array_equal(regularised(gradient, w, centre, both), [3.5, -4.5, 2.5])
    assert both.subproblem.mu == 0.75
    assert regularised(gradient, w, centre, changed_phase(phase, ridge=0.0)) is gradient


def test_constants_of_the_schedules_take_it_in(federate):
    data, _, _ = blobs(n=64)
    without, problem = (federate(Mbsgd(), data, diameter=6.0, clip=2.0, ridge=r).plan.problem for r in (0.0, 0.1))
    assert (problem.objective.lipschitz, problem.objective.smoothness_for("x")) == (2.0 + 0.1 * 3.0, 1.1)
    assert starting_gap(problem, 0.4, "paper") == pytest.approx(2.3 * 6.0)
    assert starting_gap(problem, 0.4, "tight") == pytest.approx(2.3**2 / (2 * 0.5))
    old, new = localization(without)[1], localization(problem)[1]
    assert new.lam == old.lam and new.radius == pytest.approx(old.radius * 2.3 / 2.0)
    M, n, d, L, mu = 4, new.n, 3, 2.0, new.lam + 0.1
    wanted = math.ceil(math.sqrt((1.1 + new.lam) / mu) * max(math.log(3.0 * mu * M * n**2 / (L**2 * d)), 0))
    assert theory_rounds(problem, new, 3.0) == wanted
    step = LocalizedMbsgd(step=2.0, rounds=1).plan(problem).phases[1].settings["step"]
    assert step == pytest.approx(1 / (0.5 + mu))
    stages = LocalizedAccelerated(rounds=40).plan(problem).phases[1].settings["stages"]
    assert stages[0][1] >= 2 * (1.1 + new.lam)
    lam = MbSubgradient(rounds=24).plan(problem).phases[0]
    second = 2.3**2 + 3 * lam.sigma**2 / 4
    assert lam.subproblem.mu == pytest.approx(4 * math.sqrt(second) / (6.0 * 5.0)) or lam.subproblem.lam == 0.0


def test_the_phases_minimiser_lies_within_the_ball(federate):
    """min of F + lam/2 |w - c|^2 + ridge/2 |w|^2, F linear with a gradient of norm L, c on the domain's rim."""
    data, _, _ = blobs(n=64)
    problem = federate(Mbsgd(), data, diameter=6.0, ridge=2.0).plan.problem
    rng = np.random.default_rng(1)
    for phase in localization(problem, lam=0.05):
        for _ in range(50):
            c, g = rng.standard_normal((2, 3))
            c *= 3.0 / np.linalg.norm(c)
            g *= problem.objective.clip / np.linalg.norm(g)
            best = (phase.lam * c - g) / (phase.lam + problem.objective.ridge)
            assert np.linalg.norm(best - c) <= phase.radius


def test_the_subgradient_step_is_that_of_the_larger_strong_convexity(federate):
    """Nonsmooth |<x, w> - y| with a ridge, against SciPy on its smooth dual form."""
    from fedcore.losses import Absolute

    rng = np.random.default_rng(3)
    X = rng.standard_normal((64, 2))
    y = X @ [1.0, -1.0] + rng.standard_normal(64)
    found = federate(
        MbSubgradient(rounds=8000, lam=1e-9),
        {"a": (X, y)},
        epsilon=None,
        loss=Absolute(),
        clip=1e3,
        smoothness=math.inf,
        diameter=50.0,
        ridge=0.5,
    ).final()

    def dual(a):  # max over |a_i| <= 1/n of sum a_i y_i - |X'a|^2 / (2 ridge); w = X'a / ridge
        return -(a @ y) + (X.T @ a) @ (X.T @ a) / (2 * 0.5), -y + X @ (X.T @ a) / 0.5

    solved = minimize(dual, np.zeros(64), jac=True, bounds=[(-1 / 64, 1 / 64)] * 64, options={"ftol": 1e-15})
    np.testing.assert_allclose(found, X.T @ solved.x / 0.5, atol=2e-3)


def test_a_ridge_is_part_of_ids_and_plans(federate):
    made = ExperimentConfig.model_validate({"privacy": {"epsilon": 1.0}, "algorithm": {"name": "mbsgd"}})
    problem = make_problem(made, [SiloFacts("a", 9)], 4)
    assert problem.objective.ridge == 0.0
    shown = made.algorithm.plan(problem).as_json()
    assert shown["problem"]["ridge"] == shown["phases"][0]["ridge"] == 0.0
    changed = made.model_copy(update={"model": made.model.model_copy(update={"ridge": 0.5})})
    assert run_id(changed) != run_id(made)
    plan = made.algorithm.plan(make_problem(changed, [SiloFacts("a", 9)], 4))
    assert plan.phases[0].subproblem.ridge == plan.as_json()["phases"][0]["ridge"] == 0.5
