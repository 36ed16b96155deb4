"""Noise of DIFF2: the paper's printed numbers, their true epsilons, and the best split of a budget."""

import math

import numpy as np
import pytest

from fedcore.accounting.calibration import Budget
from fedcore.algorithms import Diff2, Diff2Bvr
from fedcore.errors import InputError
from fedcore.planning.aggregated import aggregated_sigma
from fedcore.planning.phases.difference_phase import unit_noise
from fedcore.planning.problem import SiloFacts
from fedcore.planning.theorems.restarts import best_cycle, longest_step, theorem_period
from tests import gaussian_curve
from tests.problems import problem_of

SLACK = 1 + 1e-6
"""Of every sensitivity."""


def made(n=1651, silos=10, epsilon=3.0, delta=1e-5, calibration="paper", dim=101, **changes):
    sizes = [n] * silos if isinstance(n, int) else n
    facts = tuple(SiloFacts(f"s{i}", size) for i, size in enumerate(sizes))
    plain = {"clip": 1.0, "smoothness": math.inf, "diameter": 100.0, "participants": len(sizes)}
    return problem_of(facts, dim=dim, budget=Budget(epsilon, delta, calibration), **{**plain, **changes})


def noises(plan):
    """sigma_1 and sigma_2 of the first silo's shares, or sigma_1 alone."""
    return [kind.shares[0].sigma for kind in reversed(plan.phases[0].kinds)]


# Spec diff2, 4.1: alpha = 9 and 6; central multipliers of the mean over 10 silos, u = 1.25, R = 2000.
PRINTED = [
    (1651, 3.0, 1, (9.3834e-3,)),
    (1651, 3.0, 6, (4.2872e-3, 1.9150e-2)),
    (1651, 3.0, 20, (2.3458e-3, 2.0451e-2)),
    (1651, 3.0, 200, (7.4182e-4, 2.0929e-2)),
    (1651, 5.0, 1, (5.9346e-3,)),
    (1651, 5.0, 20, (1.4836e-3, 1.2934e-2)),
    (2938, 3.0, 60, (7.6866e-4, 1.1690e-2)),
    (46480, 3.0, 20, (8.3326e-5, 7.2642e-4)),
]


@pytest.mark.parametrize("n, epsilon, period, wanted", PRINTED)
def test_the_printed_noise_in_both_trust_models_and_what_it_spends(n, epsilon, period, wanted):
    """Between silos each adds P times the paper's deviation; the whole run spends mu = sqrt(epsilon / alpha)."""
    method = Diff2(rounds=2000, period=period, slope=1.0)
    apart = method.plan(made(n, epsilon=epsilon))
    central = method.plan(made(n, epsilon=epsilon, aggregator=True))
    np.testing.assert_allclose(noises(apart), [10 * sigma for sigma in wanted], rtol=5e-5)
    seen = [aggregated_sigma(kind.sigmas, kind.weights) for kind in reversed(central.phases[0].kinds)]
    np.testing.assert_allclose(seen, wanted, rtol=5e-5)
    mu = math.sqrt(epsilon / {3.0: 9, 5.0: 6}[epsilon])
    exact = gaussian_curve.epsilon_by_hand(mu * SLACK, 1e-5)
    assert exact == pytest.approx({3.0: 2.341, 5.0: 3.940}[epsilon], abs=1e-3)
    for plan in (apart, central):
        assert plan.epsilon_accounted == pytest.approx(exact, rel=1e-6)
        assert plan.epsilon_paper == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize("period, split", [(6, 0.8), (20, 0.8), (20, 0.3), (2000, 0.5)])
def test_exact_noise_is_the_closed_form_of_the_spec(period, split):
    """s_1^2 = 4 m_1 / (v n^2 mu^2), s_2^2 = 4 m_2 / ((1 - v) n^2 mu^2), mu = 0.719117 at (3, 1e-5)."""
    plan = Diff2(rounds=2000, period=period, split=split, slope=7.0).plan(made(calibration="exact", clip=3.0))
    m1 = -(-2000 // period)
    scale = 2 * SLACK / (1651 * 0.719117)
    wanted = [3.0 * scale * math.sqrt(m1 / split), 7.0 * scale * math.sqrt((2000 - m1) / (1 - split))]
    np.testing.assert_allclose(noises(plan), wanted, rtol=1e-5)
    assert plan.epsilon_accounted == pytest.approx(3.0, rel=1e-9)
    assert plan.epsilon_accounted <= 3.0 * (1 + 1e-12)


def test_a_larger_silo_adds_less_noise_of_its_own_and_spends_less_of_an_aggregators():
    sizes, method = [400, 800, 1600], Diff2(rounds=50, period=5, split=0.5)
    apart = method.plan(made(sizes, calibration="exact"))
    sigmas = [share.sigma for share in apart.phases[0].shares]
    np.testing.assert_allclose([sigma * n for sigma, n in zip(sigmas, sizes, strict=True)], sigmas[0] * 400, rtol=1e-9)
    central = method.plan(made(sizes, calibration="exact", aggregator=True))
    mu = 0.719117
    for share, n in zip(central.phases[0].shares, sizes, strict=True):
        assert share.epsilon_accounted == pytest.approx(gaussian_curve.epsilon_by_hand(mu * 400 / n, 1e-5), rel=1e-4)
        assert share.sigma == pytest.approx(sigmas[0], rel=1e-9)
    # The mean over silos: an aggregator's deviation is the smallest silo's over N, silos' own add up in squares.
    np.testing.assert_allclose(aggregated_sigma(central.phases[0].sigmas, None), sigmas[0] / 3, rtol=1e-9)
    np.testing.assert_allclose(apart.phases[0].mean_noise, sum(s**2 for s in sigmas) / 9)


def test_an_aggregators_noise_covers_the_silo_of_the_largest_weight():
    problem = made([400, 400], calibration="exact", aggregator=True, weights=(0.5, 1.5))
    plan = Diff2(rounds=50, period=5, split=0.5).plan(problem)
    epsilons = [share.epsilon_accounted for share in plan.phases[0].shares]
    assert epsilons[1] == pytest.approx(3.0, rel=1e-9)
    assert epsilons[0] == pytest.approx(gaussian_curve.epsilon_by_hand(0.719117 / 3, 1e-5), rel=1e-4)


def test_given_noise_is_a_multiple_of_each_sensitivity():
    problem = made(100, silos=2, clip=2.0)
    problem = problem_of(problem.silos, 101, 2.0, math.inf, 100.0, 2, Budget(None, 1e-5, multiplier=30.0))
    plan = Diff2(rounds=40, period=4, slope=5.0).plan(problem)
    np.testing.assert_allclose(noises(plan), [30 * 4 * SLACK / 100, 30 * 10 * SLACK / 100])
    assert plan.epsilon_accounted == pytest.approx(gaussian_curve.epsilon_by_hand(math.sqrt(40) / 30, 1e-5), rel=1e-9)
    with pytest.raises(InputError, match=r"algorithm\.period = null follows from privacy\.epsilon"):
        Diff2(rounds=40).plan(problem)


def floor(rounds, period, split, cost):
    """m_1 / v where the condition on the step holds; infinite where not. Of Proposition D.2, without constants."""
    m1 = math.ceil(rounds / period)
    if rounds == m1:
        return m1
    return m1 / split if cost * period * (rounds - m1) <= (1 - split) * (1 + 1e-9) else math.inf


@pytest.mark.parametrize("rounds", [1, 2, 7, 50, 400])
@pytest.mark.parametrize("cost", [0.0, 1e-8, 1e-5, 3e-4, 1e-3, 0.02, 1.0])
def test_period_and_split_are_the_best_of_all(rounds, cost):
    found = best_cycle(rounds, None, None, cost)
    splits = np.linspace(0.05, 0.95, 400)
    best = min(floor(rounds, T, v, cost) for T in range(1, rounds + 1) for v in splits)
    mine = floor(rounds, found.period, found.split, cost)
    assert mine <= best * (1 + 1e-9)
    assert mine >= best * 0.99  # of a fine grid, which is no better


@pytest.mark.parametrize("split", [None, 0.8])
@pytest.mark.parametrize("cost, relative", [(1e-5, 2e-5), (1e-5, 1e-4), (1e-6, 3e-4), (0.0, 0.0), (1e-5, 1.0)])
def test_the_period_is_the_shortest_whose_restarts_have_noise_of_a_tenth_of_their_bound(cost, relative, split):
    rounds = 500
    splits = [split] if split else np.linspace(0.05, 0.95, 2000)
    floors = [min(floor(rounds, T, v, cost) for v in splits) for T in range(1, rounds + 1)]
    enough = [T for T, least in enumerate(floors, 1) if relative * least <= 0.01]
    wanted = enough[0] if enough else 1 + int(np.argmin(floors))
    assert best_cycle(rounds, None, split, cost, relative).period == wanted


def test_a_plan_measures_a_restarts_noise_against_its_bound():
    """sigma of the mean over 10 silos times sqrt(d), over C_1: 0.076 for California central (spec, exact noise)."""
    central = made(calibration="exact", clip=1.5, aggregator=True)
    apart = made(calibration="exact", clip=1.5)
    norms = []
    for problem in (central, apart):
        plan = Diff2(rounds=2000, period=1).plan(problem)
        norms.append(math.sqrt(101 * plan.phases[0].mean_noise) / 1.5)
    assert norms == pytest.approx([0.0757, 0.239], abs=1e-3)
    periods = [Diff2(rounds=2000, step=0.25, slope=5.0).plan(p).phases[0].settings["period"] for p in (central, apart)]
    assert periods[0] == 1 and periods[1] > 1


def test_of_a_long_run_half_of_the_budget_goes_to_restarts():
    """T = (1 + c R) / (2 c R), v = 1 - c T m_2: about 1 / (2 c R) and 1/2."""
    found = best_cycle(100_000, None, None, 1e-8)
    assert found.period == pytest.approx((1 + 1e-3) / (2e-3), rel=0.1)
    assert found.split == pytest.approx(0.5, abs=0.05)


def test_a_period_that_is_given_has_its_best_split_and_one_too_long_half():
    assert best_cycle(100, 10, None, 1e-4).split == pytest.approx(1 - 1e-4 * 10 * 90)
    assert best_cycle(100, 10, None, 1e-6).split == 0.95  # differences keep a part
    assert best_cycle(100, 10, None, 1.0).split == 0.5
    assert best_cycle(100, 10, 0.3, 1.0).split == 0.3


def test_the_step_that_a_plan_calls_the_longest_is_where_its_condition_ends():
    """Proposition D.2 with the plan's own noise: at the planned step the condition holds, at the longest it ends."""
    problem = made(calibration="exact", clip=1.0)
    for step in (0.02, 0.1, 0.25):
        plan = Diff2(rounds=2000, step=step, slope=2.0).plan(problem)
        settings = plan.phases[0].settings
        noise = plan.phases[0].mean_noise if plan.phases[0].parts else 0.0
        by_hand = min(1 / 4.0, 1 / (2 * math.sqrt(max(settings["period"] * noise * 101, 1e-300))))
        assert settings["longest_step"] == pytest.approx(by_hand)
        assert settings["period"] == 1 or step <= settings["longest_step"] * (1 + 1e-9)
    assert longest_step(2.0, 5, 0.0, 10) == 0.25


def test_unit_noise_is_that_of_one_difference_with_the_whole_budget():
    problem = made(calibration="exact", silos=4)
    sigma = 2 * SLACK * 3.0 / (1651 * 0.719117)
    assert unit_noise(problem, 3.0) == pytest.approx(sigma**2 / 4, rel=1e-5)
    trusted = made(calibration="exact", silos=4, aggregator=True)
    assert unit_noise(trusted, 3.0) == pytest.approx(sigma**2 / 16, rel=1e-5)


def test_the_theorems_period_of_the_spec_for_california():
    """Spec diff2, 9: C_1 = C_2 = 10, epsilon 3: tau = 0.016, T = 32 of 2000, eta <= 0.0426 with the central noise."""
    assert theorem_period(2000, 10.0, 10.0, 101, 16510 * 3.0) == 32
    problem = made(clip=10.0, aggregator=True)
    plan = Diff2(rounds=2000, period="theory", split=0.8, slope=10.0).plan(problem)
    assert plan.phases[0].settings["period"] == plan.phases[0].settings["paper_period"] == 32
    assert plan.phases[0].settings["longest_step"] == pytest.approx(0.0426, abs=2e-4)


def test_local_steps_share_the_budget_and_the_published_ones_spend_what_the_spec_found():
    """Spec diff2, 4.4, with `epsilon 3, R = 200, T = 20, K = 10, n = 1651, P = 10, b = 10`.

    The closed form gives s_3^2 = 0.5400, which spends 1.87 to 2.04 (K - 1 local steps); allowed up to b = 11.08.
    """
    method = Diff2Bvr(rounds=200, period=20, local_steps=10, batch=10, slope=1.0)
    plan = method.plan(made(aggregator=False))
    local = plan.phases[0].kinds[-1]
    assert local.schedule.in_turn and local.shares[0].sigma ** 2 == pytest.approx(0.5400, abs=1e-4)
    assert 1.85 < plan.epsilon_accounted < 2.04
    assert plan.epsilon_paper == pytest.approx(3.0, rel=1e-6)
    with pytest.raises(InputError, match=r"Proposition E\.2"):
        Diff2Bvr(rounds=200, period=20, local_steps=10, batch=20).plan(made())
    exact = method.plan(made(calibration="exact"))
    assert 2.99 < exact.epsilon_accounted <= 3.0
    assert exact.phases[0].kinds[-1].shares[0].sigma ** 2 < 0.0356  # which solving E.2 numerically comes to


def test_a_plan_with_parts_says_how_many_rounds_of_each_kind_there_are():
    phase = Diff2(rounds=17, period=5, split=0.5).plan(made(calibration="exact")).phases[0]
    kinds = [phase.at(round).question.kind for round in range(1, 18)]
    assert [at for at, kind in enumerate(kinds, 1) if kind == "gradient"] == [1, 6, 11, 16]
    assert [(kind.question.kind, kind.rounds) for kind in phase.kinds] == [("gradient-difference", 13), ("gradient", 4)]
    assert phase.most_answers == 17 and phase.first_rounds == {0: 2, 1: 1}
    local = Diff2Bvr(rounds=7, period=3, split=0.5).plan(made(calibration="exact", silos=3)).phases[0]
    assert [(kind.question.kind, kind.rounds, bool(kind.schedule.in_turn)) for kind in local.kinds] == [
        ("gradient-difference", 4, False),
        ("gradient", 3, False),
        ("gradient-difference", 7, True),
    ]
    assert [local.at(2 * r).whose_turn(local.turn(2 * r)) for r in range(1, 8)] == [
        "s1",
        "s2",
        "s0",
        "s1",
        "s2",
        "s0",
        "s1",
    ]
    assert [local.kinds[-1].turns_of(name) for name in ("s0", "s1", "s2")] == [2, 3, 2]
