"""The cost of a run up to a round: equal to plans of that many rounds, by hand, and never more than at its end."""

from __future__ import annotations

import math

import pytest

from fedcore.accounting.calibration import Budget
from fedcore.accounting.composition import spent
from fedcore.accounting.gaussian import epsilon_of
from fedcore.algorithms import (
    ALGORITHMS,
    Diff2,
    Diff2Bvr,
    DpFcrn,
    Fedavg,
    LocalizedMbsgd,
    Mbsgd,
    OnePassMbsgd,
    Scaffold,
)
from fedcore.experiment.spending import is_shown, spent_so_far
from fedcore.planning.problem import SiloFacts
from tests.problems import problem_of

DELTA = 1e-6


def problem(*sizes, participants=None, epsilon=2.0, calibration="exact"):
    silos = tuple(SiloFacts(f"s{number}", n) for number, n in enumerate(sizes))
    return problem_of(silos, 4, 1.0, 1.0, 10.0, participants or len(silos), Budget(epsilon, DELTA, calibration))


def test_full_batches_by_hand():
    """mu grows with the root of the rounds: at a quarter of them it is half of the whole run's."""
    plan = Mbsgd(rounds=20).plan(problem(100, 100, 150))
    (event,) = plan.silo_events("s0")
    for rounds in (1, 5, 20):
        mu = math.sqrt(rounds) * event.sensitivity / event.sigma
        found = spent_so_far(plan, None, 1, rounds)
        assert found["epsilon_accounted"] == pytest.approx(epsilon_of(mu, DELTA), rel=1e-9)
    assert found["epsilon_accounted"] == pytest.approx(plan.epsilon_accounted, rel=1e-12)
    assert found["epsilon_paper"] == pytest.approx(plan.epsilon_paper, rel=1e-12) and len(found) == 2


@pytest.mark.parametrize(
    "method",
    [
        Mbsgd(rounds=12, batch=10),
        LocalizedMbsgd(rounds=(6, 4, 3), lam=0.1),
        OnePassMbsgd(rounds=5),
        Fedavg(rounds=6),
        Scaffold(rounds=9, local_steps=2, warm=True),
    ],
)
@pytest.mark.parametrize("participants", [3, 2])
def test_it_grows_to_what_the_plan_says_of_the_whole_run(method, participants):
    plan = method.plan(problem(64, 64, 80, participants=participants))
    so_far = [
        spent_so_far(plan, None, phase.index, round) for phase in plan.phases for round in range(1, phase.rounds + 1)
    ]
    for name, whole in (("epsilon_accounted", plan.epsilon_accounted), ("epsilon_paper", plan.epsilon_paper)):
        values = [found[name] for found in so_far if name in found]
        assert values == sorted(values) and values[-1] == pytest.approx(whole, rel=1e-9)
    drawn = [found.get("epsilon_honest_sampling") for found in so_far]
    if participants == 3:
        assert set(drawn) == {None}
        return
    assert drawn == sorted(drawn)
    assert drawn[-1] == max(plan.silo_honest_sampling(facts.name) for facts in plan.problem.silos)
    assert all(found["epsilon_honest_sampling"] <= found["epsilon_accounted"] * (1 + 1e-9) for found in so_far)


def test_statistics_before_the_run_are_in_from_the_first_round():
    from fedcore.algorithms import SecondMoments
    from fedcore.planning.sensitivity.moments import half_diameter, length

    silos = tuple(SiloFacts(f"s{number}", 100) for number in range(2))
    asked = problem_of(silos, length(3), half_diameter(1.0), math.inf, math.inf, 2, Budget(1.0, DELTA))
    before, plan = SecondMoments(3, 1.0).plan(asked), Mbsgd(rounds=4).plan(problem(100, 100))
    found = spent_so_far(plan, before, 1, 1)["epsilon_accounted"]
    (moments,), (training,) = before.silo_events("s0"), plan.until(1, 1).silo_events("s0")
    assert found == pytest.approx(spent([moments, training], DELTA), rel=1e-12) and found > 1.0


def test_it_is_shown_where_it_costs_little():
    quick, sampled = (Mbsgd(rounds=20, batch=batch).plan(problem(100, 100)) for batch in (None, 10))
    assert all(is_shown(quick, 1, round) for round in range(1, 21))
    assert [round for round in range(1, 21) if is_shown(sampled, 1, round)] == [1, 2, 4, 8, 16, 20]
    drawn = Mbsgd(rounds=20).plan(problem(100, 100, participants=1))
    assert [round for round in range(1, 21) if is_shown(drawn, 1, round)] == [1, 2, 4, 8, 16, 20]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_has_both_numbers(name):
    plan = ALGORITHMS[name]().plan(problem(256, 256))
    found = spent_so_far(plan, None, 1, 1)
    assert 0 < found["epsilon_accounted"] <= 2 * (1 + 1e-9)
    # No paper has noise for Hessians, or for DP-FCRN's answers about all records; DIFF2's is for the whole run.
    silent = ALGORITHMS[name].linear_only or "gradient-difference" in ALGORITHMS[name].asks
    assert ("epsilon_paper" not in found) if silent else found["epsilon_paper"] > 0


def test_without_noise_there_is_nothing_to_say():
    plan = Mbsgd(rounds=3).plan(problem(50, 50, epsilon=None))
    assert spent_so_far(plan, None, 1, 2) == {}


@pytest.mark.parametrize("calibration", ["exact", "paper"])
@pytest.mark.parametrize(
    "method, epsilon",
    [
        (Diff2(rounds=9, period=1), 2.0),
        (Diff2(rounds=9, period=2), 2.0),
        (Diff2(rounds=9, period=9), 2.0),
        (Diff2Bvr(rounds=9, period=3), 4.0),
        (DpFcrn(rounds=9, sampling="record"), 0.5),
    ],
)
def test_a_formula_for_the_whole_run_claims_nothing_before_its_end(method, epsilon, calibration):
    """DIFF2's restarts look like minibatch SGD, DP-FCRN's drawn records like local steps: their formulas are others."""
    plan = method.plan(problem(3000, 3000, 4000, epsilon=epsilon, calibration=calibration))
    found = [spent_so_far(plan, None, 1, round) for round in range(1, plan.rounds + 1)]
    assert [("epsilon_paper" in each) for each in found[:-1]] == [False] * (plan.rounds - 1)
    claimed = {"epsilon_paper": plan.epsilon_paper} if math.isfinite(plan.epsilon_paper) else {}
    assert {name: value for name, value in found[-1].items() if name == "epsilon_paper"} == claimed
    assert all(0 < each["epsilon_accounted"] <= plan.epsilon_accounted * (1 + 1e-9) for each in found)
    if calibration == "paper":
        assert plan.epsilon_paper == pytest.approx(epsilon, rel=1e-12)
