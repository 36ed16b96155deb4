"""Problems that a shuffler cannot hide are refused by the problem itself, from every source; plans of shuffled runs."""

import dataclasses
import math

import pytest

from fedcore.accounting.calibration import Budget
from fedcore.accounting.shuffling import shuffled_epsilon
from fedcore.accounting.whole_silo import WholeSilo
from fedcore.algorithms import ALGORITHMS
from fedcore.errors import InputError
from fedcore.losses import Logistic
from fedcore.planning.evaluation import Evaluation
from fedcore.planning.plan import Plan
from fedcore.planning.problem import SiloFacts
from fedcore.planning.shuffle import Shuffle
from fedcore.silo.agreement import Agreement
from tests.gaussian_curve import epsilon_by_hand, mu_by_hand
from tests.problems import problem_of


def problem(sizes=(8, 8, 8), minimum=3, **more):
    silos = tuple(SiloFacts(f"s{i}", n, 2 * ("evaluation" in more)) for i, n in enumerate(sizes))
    given = {"participants": len(sizes), "budget": Budget(1.0, 1e-4), "shuffle": Shuffle(minimum), **more}
    return problem_of(silos, 3, 1.0, 1.0, 10.0, **given)


@pytest.mark.parametrize(
    "changed, sentence",
    [
        ({"sizes": (8, 9, 8)}, "silos of equal size, and these have 8 to 9"),
        ({"minimum": 1}, "shuffler.minimum = 1 must be from 2 to the 3"),
        ({"minimum": 4}, "shuffler.minimum = 4 must be from 2 to the 3"),
        ({"participants": (2, 3)}, "participation.silos_per_round a number"),
        ({"participants": 2}, "shuffler.minimum = 3 must be from 2 to the 2"),
        ({"weights": (2.0, 0.5, 0.5)}, "participation.weights = equal"),
        ({"evaluation": Evaluation(1.0, "end", 2)}, "no evaluation"),
        ({"budget": Budget(1.0, 0.05)}, "privacy.delta = 0.05 must be below 1/24 with privacy.trust = shuffler"),
        ({"sizes": (2, 2, 2), "budget": Budget(1.0)}, "privacy.delta = 1/n^2 must be below 1/6 with"),
        ({"budget": Budget(1.0, 1e-4, whole_silo=WholeSilo(8.0, 1e-5))}, "privacy.whole_silo is a target without"),
    ],
)
def test_what_would_tell_silos_apart_is_refused(changed, sentence):
    with pytest.raises(InputError) as refused:
        problem(**changed)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    "name, hyper, sentence",
    [
        ("mbsgd", {"batch": 3}, "full batches only"),
        ("fedavg", {"rounds": 3, "local_steps": 2}, "one answer a round"),
        ("scaffold", {"rounds": 3, "local_steps": 2}, "one answer a round"),
    ],
)
def test_a_plan_of_samples_or_of_several_answers_is_refused(name, hyper, sentence):
    with pytest.raises(InputError, match=sentence):
        ALGORITHMS[name](**hyper).plan(problem())


def test_the_shuffler_and_its_minimum_are_part_of_digests():
    plain, shuffled = problem(shuffle=None), problem()
    assert Plan(plain, ()).digest != Plan(shuffled, ()).digest != Plan(problem(minimum=2), ()).digest


def test_an_agreement_carries_the_minimum():
    sent = Agreement("run", problem(minimum=2), ALGORITHMS["mbsgd"](), Logistic(), "0" * 64)
    assert Agreement.from_bytes(sent.to_bytes()).problem.trust.shuffle == Shuffle(2)


MANY = {"sizes": (2,) * 200, "minimum": 150}


def test_a_plan_takes_the_smaller_noise_and_charges_what_it_costs_without_a_shuffler():
    """mbsgd of 30 rounds over 2 records each: one phase, sensitivity 2/2 (1 + 1e-6), composed to sqrt(30) / sigma."""
    plan = ALGORITHMS["mbsgd"](rounds=30).plan(problem(**MANY))
    sigma, totals = plan.phases[0].sigma, plan.as_json()["totals"]
    local = (1 + 1e-6) * math.sqrt(30) / mu_by_hand(1.0, 1e-4)
    assert sigma < local / 2
    assert totals["noise_from"] == "shuffler"
    assert totals["noise_without_shuffler"] == pytest.approx(local / sigma, rel=1e-6)
    assert plan.epsilon_accounted == pytest.approx(epsilon_by_hand(math.sqrt(30) / sigma, 1e-4), rel=1e-5)
    assert 0.99 < totals["epsilon_shuffled"] <= 1.0 < plan.epsilon_accounted
    # The minimum, not all that take part, is what hides.
    found = shuffled_epsilon(sigma / (1 + 1e-6), 2, 30, 150, 1e-4)
    assert totals["epsilon_shuffled"] == pytest.approx(found, rel=5e-3)
    assert shuffled_epsilon(sigma / (1 + 1e-6), 2, 30, 200, 1e-4) < found


def test_large_silos_keep_the_local_noise():
    plain = ALGORITHMS["mbsgd"](rounds=30).plan(problem(sizes=(100,) * 5, minimum=5, shuffle=None))
    plan = ALGORITHMS["mbsgd"](rounds=30).plan(problem(sizes=(100,) * 5, minimum=5))
    assert plan.phases == plain.phases
    totals = plan.as_json()["totals"]
    assert totals["noise_from"] == "local" and totals["noise_without_shuffler"] == pytest.approx(1.0)
    assert totals["epsilon_shuffled"] == pytest.approx(plan.epsilon_accounted, rel=1e-9)


def test_nothing_is_said_without_a_shuffler():
    assert not {"epsilon_shuffled", "noise_from"} & set(
        ALGORITHMS["mbsgd"](rounds=3).plan(problem(shuffle=None)).as_json()["totals"]
    )
    none = ALGORITHMS["mbsgd"](rounds=3).plan(problem(budget=Budget(None, 1e-4)))
    assert none.as_json()["totals"]["epsilon_shuffled"] is None


@pytest.mark.parametrize(
    "name, hyper, answers",
    [("one-pass-mbsgd", {"rounds": 2}, 1), ("localized-mbsgd", {"rounds": (20, 10), "max_phases": 2}, None)],
)
def test_a_record_pays_for_its_piece_alone(name, hyper, answers):
    """Of one pass a single answer; of localized phases the dearest one."""
    plan = ALGORITHMS[name](**hyper).plan(problem(sizes=(8,) * 200, minimum=200))
    each = []
    for phase in plan.phases:
        event, batch = phase.event("s0", 1), int(phase.by_silo["s0"].batch)
        rounds = answers or phase.rounds
        each.append(shuffled_epsilon(event.sigma / event.sensitivity, batch, rounds, 200, 1e-4, 1.0))
    assert plan.epsilon_shuffled == max(each) <= 1.0


def test_given_noise_has_its_epsilon_of_shuffled_batches():
    plan = ALGORITHMS["mbsgd"](rounds=30).plan(problem(**MANY, budget=Budget(None, 1e-4, multiplier=8.0)))
    assert plan.epsilon_shuffled == pytest.approx(shuffled_epsilon(8.0, 2, 30, 150, 1e-4), rel=1e-9)
    assert plan.epsilon_shuffled < plan.epsilon_accounted / 2
    assert plan.as_json()["totals"]["noise_from"] is None


def test_discrete_noise_of_all_messages_is_charged():
    """With a delta so small that the distance of 200 x 30 messages of discrete noise is no longer covered: local."""
    given = {**MANY, "budget": Budget(None, 1e-4, "exact", "discrete-gaussian", 8.0)}
    plan = ALGORITHMS["mbsgd"](rounds=30).plan(problem(**given))
    assert plan.epsilon_shuffled < plan.epsilon_accounted / 2
    tiny = dataclasses.replace(given["budget"], fixed_delta=1e-22)
    plan = ALGORITHMS["mbsgd"](rounds=30).plan(problem(**given | {"budget": tiny}))
    assert plan.epsilon_shuffled == plan.epsilon_accounted
