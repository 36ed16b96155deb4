"""Plans with a target for whole silos, composed by hand from the shares' public numbers."""

import json
import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.accounting.calibration import Budget
from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.whole_silo import WholeSilo
from fedcore.algorithms import (
    Fedavg,
    LocalizedAccelerated,
    LocalizedMbsgd,
    LocalizedSubgradient,
    Mbsgd,
    MbSubgradient,
    OnePassMbsgd,
    Scaffold,
)
from fedcore.algorithms.statistics.evaluated import evaluated
from fedcore.errors import InputError
from fedcore.experiment.experiment import make_plan
from fedcore.experiment.loading import load_experiment
from fedcore.planning.evaluation import Evaluation
from fedcore.planning.problem import SiloFacts
from fedcore.planning.whole_silo import RaisedBudget, planned
from fedcore.silo.agreement import Agreement
from tests.fedcore.accounting.test_whole_silo import exact_epsilon
from tests.fedcore.refusal import refusal
from tests.gaussian_curve import epsilon_by_hand, mu_by_hand
from tests.problems import problem_of

DIGITS = "conf/experiment/digits.yaml"
DELTA, WHOLE = 1e-6, WholeSilo(8.0, 1e-5)
CLIP = 0.5
METHODS = [
    Mbsgd(rounds=10),
    MbSubgradient(rounds=6),
    OnePassMbsgd(rounds=8),
    LocalizedMbsgd(rounds=(5, 3), lam=0.1),
    LocalizedAccelerated(),
    LocalizedSubgradient(),
    Fedavg(rounds=4, local_steps=3),
    Scaffold(rounds=6, warm=True),
]
"""Methods whose answers are about a public number of records."""


def problem(*sizes, epsilon=1.0, whole=WHOLE, delta=DELTA, held=0, evaluation=None, participants=None, **budget):
    silos = tuple(SiloFacts(f"s{at}", n, held) for at, n in enumerate(sizes))
    budget = Budget(epsilon, delta, whole_silo=whole, **budget)
    return problem_of(silos, 4, CLIP, 0.25, 10.0, participants or len(sizes), budget, evaluation=evaluation)


def mu_of_whole(plan, silo, most=None):
    """Each answer's mean moves by 2 C for all questions: a histogram's by sqrt(2). Rounds, answers and sigma are all
    that counts."""
    total = 0.0
    for phase in plan.phases:
        reach = math.sqrt(2) if phase.question.kind == "histogram" else 2 * CLIP
        answers = phase.schedule.answers if phase.schedule.at_most_once else phase.schedule.answers * phase.rounds
        total += answers * (reach * (1 + 1e-6) / phase.by_silo[silo].sigma) ** 2
    return math.sqrt(total)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("sizes", [(300,), (300, 450, 300)], ids=len)
def test_both_targets_hold_and_one_of_them_exactly_at_every_silo(method, sizes):
    plan = planned(method, problem(*sizes))
    for silo, n in zip(plan.problem.silos, sizes, strict=True):
        whole = epsilon_by_hand(mu_of_whole(plan, silo.name), WHOLE.delta)
        assert plan.whole_silo_epsilon(silo.name) == pytest.approx(whole, rel=1e-8)
        assert 7.99999 < whole <= 8.0 * (1 + 1e-9)
        assert plan.silo_epsilon(silo.name) < 1.0
        assert plan.problem.sizes[silo.name] == n
    assert plan.epsilon_whole_silo == pytest.approx(8.0, rel=1e-6)
    assert plan.problem == problem(*sizes) and {phase.noise.target for phase in plan.phases} == {1.0}


def test_noise_of_one_phase_is_that_of_the_closed_formula():
    plan = planned(Mbsgd(rounds=10), problem(300, 500))
    for share in plan.phases[0].shares:
        by_hand = 2 * CLIP * (1 + 1e-6) * math.sqrt(10) / mu_by_hand(8.0, 1e-5)
        assert share.sigma == pytest.approx(by_hand, rel=1e-8)
        record = epsilon_by_hand(mu_by_hand(8.0, 1e-5) / share.n, DELTA)
        assert plan.silo_epsilon(share.silo) == share.epsilon_accounted == pytest.approx(record, rel=1e-6)


def test_all_phases_of_a_silo_have_one_factor_and_silos_their_own():
    method = LocalizedMbsgd(rounds=(5, 3), lam=0.1)
    plain, plan = method.plan(problem(300, 500, whole=None)), planned(method, problem(300, 500))
    factors = {
        silo.name: [
            phase.by_silo[silo.name].sigma / before.by_silo[silo.name].sigma
            for phase, before in zip(plan.phases, plain.phases, strict=True)
        ]
        for silo in plan.problem.silos
    }
    for name, shards in (("s0", [300 // 2**i for i in range(1, 9)]), ("s1", [500 // 2**i for i in range(1, 9)])):
        assert np.ptp(factors[name]) < 1e-9 * factors[name][0]
        # Without the second target phase i has mu* of one record, so n_i mu* of all.
        by_hand = mu_by_hand(1.0, DELTA) * math.sqrt(sum(n**2 for n in shards)) / mu_by_hand(8.0, 1e-5)
        assert factors[name][0] == pytest.approx(by_hand, rel=1e-8)
    assert [phase.subproblem.lam for phase in plan.phases] == [phase.subproblem.lam for phase in plain.phases]


def test_a_wide_target_changes_nothing():
    wide = WholeSilo(5000.0, 1e-5)
    for method in (Mbsgd(rounds=10), Mbsgd(rounds=10, batch=30), OnePassMbsgd(rounds=8), Fedavg(rounds=2)):
        plan, plain = planned(method, problem(40, whole=wide)), method.plan(problem(40, whole=None))
        assert plan.phases == plain.phases and plan.epsilon_accounted == plain.epsilon_accounted
        assert plan.epsilon_whole_silo <= 5000.0
        assert plan.digest != plain.digest


@pytest.mark.parametrize(("n", "batch", "rounds"), [(40, 8, 6), (25, 20, 12)])
def test_poisson_samples_keep_to_both_targets_by_the_law_of_their_sizes(n, batch, rounds):
    plan = planned(Mbsgd(rounds=rounds, batch=batch), problem(n))
    share = plan.phases[0].shares[0]
    one = 2 * CLIP * (1 + 1e-6) / batch
    exact = exact_epsilon(n, batch / n, share.sigma / one, rounds, 1e-5)
    assert 7.95 < exact <= 8.0 and plan.epsilon_whole_silo == pytest.approx(exact, rel=4e-3)
    assert plan.epsilon_accounted <= 1.0


def test_evaluations_are_about_the_silo_too_and_share_its_factor():
    method, evaluation = LocalizedMbsgd(rounds=(5, 3), lam=0.1, max_phases=2), Evaluation(2.0, "phase", 2)
    asked, free = (problem(300, held=60, evaluation=evaluation, whole=whole) for whole in (WHOLE, None))
    plan, plain = planned(evaluated(method, asked), asked), evaluated(method, free).plan(free)
    assert [phase.evaluates for phase in plan.phases] == [False, True, False, True]
    assert [phase.noise.target for phase in plan.phases] == [1.0, 2.0, 1.0, 2.0]
    factors = [phase.sigma / before.sigma for phase, before in zip(plan.phases, plain.phases, strict=True)]
    assert np.ptp(factors) < 1e-9 * factors[0] and factors[0] > 1
    assert epsilon_by_hand(mu_of_whole(plan, "s0"), 1e-5) == pytest.approx(8.0, rel=1e-6)
    assert plan.epsilon_accounted < 2.0


def test_schedules_are_told_the_epsilon_that_their_noise_stands_for():
    asked = problem(300, 450)
    plan = planned(LocalizedAccelerated(), asked)
    theory = LocalizedAccelerated().plan(problem(300, 450, whole=None))
    assert plan.rounds < theory.rounds / 2 and plan.phases[0].subproblem.lam > 2 * theory.phases[0].subproblem.lam
    # The smallest silo's factor on the noise of so many rounds; lambda is that of the theorem for epsilon over it.
    first = plan.phases[0]
    alone = 2 * CLIP * (1 + 1e-6) * math.sqrt(first.rounds) / (150 * mu_by_hand(1.0, DELTA))
    mu = 1.0 / (first.by_silo["s0"].sigma / alone)
    by_hand = CLIP / (10.0 * 300 * math.sqrt(2)) * max(math.sqrt(300), math.sqrt(4 * math.log(1e6)) / mu)
    assert first.subproblem.lam == pytest.approx(by_hand, rel=1e-6)


def test_a_schedule_that_moves_with_its_noise_settles():
    plan = planned(LocalizedAccelerated(max_phases=1, batch="theory"), problem(200))
    assert 7.9 < plan.epsilon_whole_silo <= 8.0 and plan.epsilon_accounted <= 1.0


def test_one_factor_costs_eleven_percent_of_the_best_split_of_the_bound():
    """sum of 1 / (lambda_i x_i) with sum x_i = 1, x_i the part of the whole-silo budget: lambda_i = 8^i."""
    lam = 8.0 ** np.arange(30)
    ours = 0.25 ** np.arange(30)
    best = lam**-0.5  # by Cauchy and Schwarz
    costs = [float(np.sum(1 / (lam * x / x.sum()))) for x in (ours, best)]
    assert costs[0] / costs[1] == pytest.approx(1.114, abs=1e-3)
    assert all(np.sum(1 / (lam * x / x.sum())) >= costs[1] for x in np.random.default_rng(0).random((50, 30)))


@given(
    st.lists(st.integers(20, 3000), min_size=1, max_size=4),
    st.floats(0.01, 50),
    st.floats(0.05, 200),
    st.sampled_from([1e-9, 1e-5, 1e-2]),
    st.sampled_from(METHODS),
)
def test_both_targets_hold_for_whatever_is_asked(sizes, epsilon, whole, delta, method):
    plan = planned(method, problem(*sizes, epsilon=epsilon, whole=WholeSilo(whole, delta), delta=1e-7))
    for silo in plan.problem.silos:
        spent, all_of_it = plan.silo_epsilon(silo.name), plan.whole_silo_epsilon(silo.name)
        assert spent <= epsilon * (1 + 1e-9) and all_of_it <= whole
        tight = spent == pytest.approx(epsilon, rel=1e-6) or all_of_it == pytest.approx(whole, rel=2e-3)
        assert tight, (spent, all_of_it)


def test_a_plan_says_it_and_one_without_does_not():
    config = load_experiment(DIGITS, ["privacy.whole_silo={epsilon: 8, delta: 1e-3}"])
    totals = make_plan(config).as_json()["totals"]
    assert totals["epsilon_whole_silo_target"] == 8 and totals["delta_whole_silo"] == 1e-3
    assert 7.999 < totals["epsilon_whole_silo"] <= 8
    plain = make_plan(load_experiment(DIGITS))
    assert plain.epsilon_whole_silo is None and not any("whole_silo" in key for key in plain.as_json()["totals"])
    with pytest.raises(ValueError, match="no target for whole silos"):
        plain.whole_silo_epsilon(plain.problem.silos[0].name)


def test_agreements_carry_its_target():
    asked = problem(30)
    agreement = Agreement("run", asked, Mbsgd(), None, planned(Mbsgd(), asked).digest)
    assert json.loads(agreement.to_bytes())[2]["budget"]["whole_silo"] == {"epsilon": 8.0, "delta": 1e-5}
    assert Agreement.from_bytes(agreement.to_bytes()).problem == asked


def test_noise_of_many_sizes_is_looked_up_and_not_looked_for():
    sizes = range(10, 10_010)
    raised = RaisedBudget(1.0, DELTA, found=Budget(1.0, DELTA), factors=tuple((n, 2.0) for n in sizes))
    event = GaussianRelease(0, 1, 1.0, 0.0)
    plain = raised.found.sigma_for(event, 10, lambda: None)
    began = time.process_time()
    assert all(raised.sigma_for(event, n, lambda: None) == 2.0 * plain for n in sizes)
    assert time.process_time() - began < 1.0  # a silo makes the plan of whatever agreement arrives


BUDGETS = [
    ({"epsilon": None}, "needs privacy.epsilon"),
    ({"epsilon": None, "multiplier": 2.0}, "needs privacy.epsilon"),
    ({"multiplier": 2.0}, "needs privacy.epsilon"),
    ({"calibration": "paper"}, "calibration = exact"),
    ({"whole": WholeSilo(0.0, 1e-5)}, "whole_silo.epsilon = 0"),
    ({"whole": WholeSilo(math.nan, 1e-5)}, "whole_silo.epsilon = nan"),
    ({"whole": WholeSilo(1e9, 1e-5)}, "whole_silo.epsilon = 1000000000 must"),
    ({"whole": WholeSilo(1.0, 1.0)}, "whole_silo.delta = 1"),
    ({"whole": WholeSilo(1.0, 0.0)}, "whole_silo.delta = 0"),
    ({"whole": WholeSilo(1.0, 0.5)}, "whole_silo.delta = 0.5 must be below 1/N = 0.5"),
]


@pytest.mark.parametrize(("changes", "message"), BUDGETS, ids=lambda value: value if isinstance(value, str) else "")
def test_numbers_that_no_target_has_are_refused_in_one_sentence(changes, message):
    with pytest.raises(InputError, match=message) as refused:
        problem(30, 40, **changes)
    assert "\n" not in str(refused.value)


CONFIGS = [
    (["privacy.trust=none", "privacy.epsilon=null"], "trust = none"),
    (["privacy.noise_multiplier=2", "privacy.epsilon=null", "algorithm.name=mbsgd"], "noise_multiplier gives it"),
    (["privacy.calibration=paper"], "calibration = exact"),
    (["data.pca={constants: released, epsilon: 1}"], "data.pca.constants = released is a release of its own"),
    (["privacy.whole_silo.delta=1"], "less than 1"),
    (["privacy.whole_silo.epsilon=0"], "greater than 0"),
    (["privacy.whole_silo.rule=gdp"], "rule"),
]


@pytest.mark.parametrize(("overrides", "message"), CONFIGS, ids=lambda value: value if isinstance(value, str) else "")
def test_configs_that_contradict_it_are_refused_in_one_sentence(overrides, message):
    text = refusal(load_experiment, DIGITS, ["privacy.whole_silo={epsilon: 8, delta: 1e-3}", *overrides])
    assert message in text and "\n" not in text.strip()
