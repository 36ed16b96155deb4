"""The law of the number of participants: means against fractions, draws, consequences, and refusals."""

import dataclasses
import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import brentq

from fedcore.accounting.calibration import Budget
from fedcore.algorithms import ALGORITHMS, Fedavg, LocalizedAccelerated, Mbsgd, Scaffold
from fedcore.configfile.reading import validated
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from fedcore.experiment.loading import load_experiment
from fedcore.experiment.spending import is_shown, spent_so_far
from fedcore.models.smoothing import theory_beta, theory_radius
from fedcore.planning.participation import Binomial, Participation
from fedcore.planning.phases.local_phase import published_claims
from fedcore.planning.problem import SiloFacts
from fedcore.randomness import derive, driver_key, participants, public_key
from fedcore.silo.agreement import Agreement
from tests.gaussian_curve import delta_by_hand
from tests.problems import problem_of

N = 25
LAWS = [(5, 10, 20), (1, 1, 1, 2, 25), (3,), (25,), Binomial(0.4), Binomial(0.01), Binomial(1.0)]


def by_fractions(law, n):
    """E[f(M_r)] as a function of f, exactly."""
    if isinstance(law, Binomial):
        q = Fraction(law.binomial)
        weights = {m: math.comb(n, m) * q**m * (1 - q) ** (n - m) for m in range(1, n + 1)}
    else:
        weights = Counter(law)
    total = Fraction(sum(weights.values()))
    return lambda f: sum(Fraction(w) * f(m) for m, w in weights.items()) / total


def problem(participants, n=N, records=40, **changes):
    facts = tuple(SiloFacts(f"s{i:02d}", records) for i in range(n))
    return problem_of(facts, 3, 1.0, 0.25, 6.0, participants, Budget(1.0, 1e-5), **changes)


# The law


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_its_means_are_those_of_exact_fractions(law):
    expectation, found = by_fractions(law, N), Participation.of(law, N)
    assert found.expected == pytest.approx(float(expectation(lambda m: m)), rel=1e-13)
    assert found.harmonic == pytest.approx(float(1 / expectation(lambda m: Fraction(1, m))), rel=1e-13)
    square = float(expectation(lambda m: Fraction(1, m * m)))
    assert found.second_harmonic == pytest.approx(1 / math.sqrt(square), rel=1e-13)
    numbers = [m for m in range(1, N + 1) if expectation(lambda each, m=m: each == m) > 0]
    assert (found.least, found.most) == (min(numbers), max(numbers))
    for m, p in found.probabilities:
        assert p == pytest.approx(float(expectation(lambda each, m=m: each == m)), rel=1e-12)


def test_the_specs_example():
    found = problem((5, 10, 20)).participation
    assert (round(found.harmonic, 4), round(found.second_harmonic, 4)) == (8.5714, 7.5593)


@pytest.mark.parametrize("n, q", [(1, 0.3), (300, 0.999999), (300, 1e-9), (40_000, 0.25), (7, 1 - 2**-53), (7, 1e-320)])
def test_a_binomial_law_is_scipys_given_that_somebody_is_there(n, q):
    found = dict(Participation.of(Binomial(q), n).probabilities)
    assert math.fsum(found.values()) == pytest.approx(1.0, rel=1e-12)
    at = np.array([m for m, p in found.items() if p > 1e-200])
    # Relative to the mode: for tiny q the chance of at least one participant would cancel.
    log = stats.binom.logpmf(at, n, q) if q > 1e-300 else np.where(at == 1, 0.0, -np.inf)
    wanted = np.exp(log - log.max())
    ours = np.array([found[m] for m in at])
    np.testing.assert_allclose(ours / ours.max(), wanted, rtol=1e-7, atol=1e-300)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=9))
def test_the_means_are_in_order_and_equal_only_where_the_number_is_fixed(numbers):
    found = Participation.of(tuple(numbers), 12)
    assert found.least <= found.second_harmonic * (1 + 1e-15) and found.expected <= found.most
    if found.fixed:
        assert found.second_harmonic == found.harmonic == found.expected == numbers[0]
    else:
        assert found.second_harmonic < found.harmonic < found.expected
    assert found.full == (min(numbers) == 12)


# Draws


@pytest.mark.parametrize("law", [(5, 10, 20), (2, 2, 2, 24), Binomial(0.1)], ids=str)
def test_numbers_are_drawn_by_the_law_anew_in_each_round(law):
    found, key = Participation.of(law, N), public_key(3)
    rounds = [found.drawn(key, phase, round) for phase in (1, 2) for round in range(1, 2001)]
    assert rounds == [found.drawn(key, phase, round) for phase in (1, 2) for round in range(1, 2001)]
    counts, expectation = Counter(rounds), by_fractions(law, N)
    numbers = [m for m in range(1, N + 1) if float(expectation(lambda each, m=m: each == m)) * len(rounds) > 5]
    observed = [counts[m] for m in numbers] + [len(rounds) - sum(counts[m] for m in numbers)]
    chances = [float(expectation(lambda each, m=m: each == m)) for m in numbers]
    wanted = np.array([*chances, max(1 - sum(chances), 0.0)]) * len(rounds)
    kept = wanted > 1e-9
    assert not any(o for o, k in zip(observed, kept, strict=True) if not k)
    assert stats.chisquare(np.array(observed)[kept], wanted[kept], sum_check=False).pvalue > 1e-3
    # The numbers of successive rounds are uncorrelated.
    assert abs(np.corrcoef(rounds[:-1], rounds[1:])[0, 1]) < 4 / math.sqrt(len(rounds))
    assert rounds[:50] != [found.drawn(public_key(4), 1, round) for round in range(1, 51)]


def naive_silos(names, count, key, phase, round):
    """The silos of a round with the smallest raw words of the round's address, by NumPy's own Philox."""
    address = derive(key, phase, round, "participation")[:16]
    words = np.random.Philox(key=int.from_bytes(address, "little")).random_raw(len(names)).tolist()
    chosen = sorted(range(len(names)), key=lambda at: words[at])[:count]
    return tuple(names[i] for i in sorted(chosen))


@pytest.mark.parametrize(
    ("law", "numbers"), [(3, {3}), ((3,), {3}), ((2, 5), {2, 5}), (Binomial(0.5), {1, 2, 3, 4, 5, 6, 7})], ids=str
)
def test_given_their_number_silos_are_those_of_a_fixed_number(law, numbers, federate):
    rng = np.random.default_rng(0)
    data = {name: (rng.standard_normal((8, 2)), rng.standard_normal(8)) for name in "abcdefg"}
    sizes, key = set(), driver_key(0, 0, "mbsgd")
    federation = federate(Mbsgd(rounds=1500), data, participants=law)
    for round in range(1, 1501):  # each number is due, to 1e-5
        query = federation.context.query(dataclasses.replace(federation.start, phase=1, round=round))
        M = len(query.participants)
        sizes.add(M)
        wanted = naive_silos(tuple(data), M, key, 1, query.round) if M < 7 else tuple(data)
        assert query.participants == wanted == participants(tuple(data), M, key, 1, query.round)
    assert sizes == numbers


def test_each_silo_is_in_a_round_with_the_expected_number_over_N(federate):
    rng = np.random.default_rng(0)
    data = {name: (rng.standard_normal((4, 2)), rng.standard_normal(4)) for name in "abcde"}
    participations, rounds = Counter(), 1500
    for query in federate(Mbsgd(rounds=rounds, step=1e-9), data, participants=(1, 1, 4), epsilon=None).queries():
        participations.update(query.participants)
    chance = 2 / 5  # E[M_r] = 2
    for name in data:
        assert participations[name] / rounds == pytest.approx(chance, abs=4 * math.sqrt(chance * (1 - chance) / rounds))


# What follows from it


def test_epsilon_under_honest_silo_sampling_is_the_sum_over_all_numbers_of_all_rounds():
    """All sequences of numbers of six rounds, and for each how often a silo is asked: 64 sums of independent coins."""
    law, n, T = (1, 3, 3), 4, 6
    plan = Mbsgd(rounds=T).plan(problem(law, n))
    (event,) = plan.silo_events("s00")
    assert event.count == T  # what noise is for
    weights, chances = np.zeros(T + 1), {1: Fraction(1, 3), 3: Fraction(2, 3)}
    for numbers in itertools.product(chances, repeat=T):
        answered = np.ones(1)
        for m in numbers:  # a silo is among m of 4 with chance m/4
            answered = np.convolve(answered, [1 - m / n, m / n])
        weights += float(math.prod(chances[m] for m in numbers)) * answered
    mu = event.sensitivity / event.sigma

    def excess(epsilon):
        return sum(w * delta_by_hand(mu * math.sqrt(k), epsilon) for k, w in enumerate(weights)) - 1e-5

    by_hand = brentq(excess, 0, 10, xtol=1e-12)
    found = plan.silo_honest_sampling("s00")
    assert by_hand * (1 - 1e-9) <= found <= by_hand * 1.002
    assert found < plan.silo_epsilon("s00") == pytest.approx(1.0, rel=1e-3)  # no amplification in what is charged


@pytest.mark.parametrize("law", [(2, 2, 12), Binomial(0.3)], ids=str)
def test_what_is_expected_of_communication_is_the_mean_over_draws(law, federate):
    """100 runs' public draws of a warm start, where a silo counts once, and of the rounds after it."""
    rng = np.random.default_rng(1)
    data = {f"s{i:02d}": (rng.standard_normal((10, 2)), rng.standard_normal(10)) for i in range(12)}
    method = Scaffold(rounds=30, local_steps=2, sampling_rate=0.5, warm=True)
    federation = federate(method, data, participants=law)
    plan, counted = federation.plan, []
    expected = float(by_fractions(law, 12)(lambda m: m))
    assert plan.phases[0].rounds == round(4 * 12 / expected)
    for number in range(100):
        context, state = (
            dataclasses.replace(federation.context, key=driver_key(0, number, method.name)),
            federation.start,
        )
        turns = [0, 0]
        for phase in (1, 2):
            for at in range(1, plan.phases[phase - 1].rounds + 1):
                # The broadcast of the second phase looks at the state of control variates: none yet.
                turns[phase - 1] += len(context.query(dataclasses.replace(state, phase=phase, round=at)).participants)
        counted.append(turns)
    once, often = np.mean(counted, axis=0)
    error = np.std(counted, axis=0) / 10
    assert once == pytest.approx(plan.phases[0].turns(expected), abs=4 * error[0])
    assert often == pytest.approx(plan.phases[1].turns(expected), abs=4 * error[1])
    totals = plan.as_json()["totals"]
    mean = [phase.turns(expected) for phase in plan.phases]
    assert totals["floats_up"] == pytest.approx(2 * sum(mean), rel=1e-12)
    assert totals["floats_down"] == pytest.approx(2 * (mean[0] + 2 * mean[1]), rel=1e-12)
    assert totals["gradient_evaluations"] == pytest.approx(2 * 5 * sum(mean), rel=1e-12)


def numbers(value):
    """All numbers of plain values but those that name how many take part, in their order."""
    if isinstance(value, dict):
        return [each for key, item in value.items() if key not in LEFT_OUT for each in numbers(item)]
    if isinstance(value, list | tuple):
        return [each for item in value for each in numbers(item)]
    return [value] if isinstance(value, int | float) else []


LEFT_OUT = {"participants", "gradient_evaluations", "epsilon_paper"}
LEFT_OUT |= {f"{what}_{way}" for what in ("floats", "bytes") for way in ("up", "down")}


@pytest.mark.parametrize("epsilon", [None, 1.0])
@pytest.mark.parametrize("name", [name for name, kind in sorted(ALGORITHMS.items()) if not kind.needs_all_silos])
def test_schedules_take_the_harmonic_mean(name, epsilon):
    """Of (2, 6) it is 3: 1/3 = (1/2 + 1/6) / 2. Such a plan is that of 3 silos in all that theorems decide."""
    made, hyper = [], {"rounds": 5} if name == "one-pass-accelerated-mbsgd" else {}  # its theorem is for all silos
    for law in (3, (2, 6), (1, 3, 8)):  # the last one has another: 72/35
        budget = Budget(epsilon, 1e-5)
        plan = ALGORITHMS[name](**hyper).plan(dataclasses.replace(problem(law, 9, records=200), budget=budget))
        made.append(numbers(plan.as_json()))
    assert made[0] == pytest.approx(made[1], rel=1e-12)
    takes = "accelerated" in name or name in ("localized-mbsgd", "localized-subgradient")
    takes |= name == "mb-subgradient" and epsilon is not None
    assert (made[2] != pytest.approx(made[0], rel=1e-3)) == takes


def test_smoothing_takes_the_harmonic_mean():
    for of in (theory_beta, theory_radius):
        fixed, drawn, other = (of(problem(law, 9)) for law in (3, (2, 6), (1, 3, 8)))
        assert drawn == pytest.approx(fixed, rel=1e-12) and other != pytest.approx(fixed, rel=1e-2)


def test_a_theorems_batch_needs_all_silos_in_every_round():
    method = LocalizedAccelerated(batch="theory", max_phases=2)
    whole = method.plan(problem((9, 9), 9, records=200))
    assert numbers(whole.as_json()) == numbers(method.plan(problem(9, 9, records=200)).as_json())
    with pytest.raises(InputError, match=r"participation.silos_per_round = 3 to 9 of 9"):
        method.plan(problem((3, 9), 9, records=200))
    with pytest.raises(InputError, match=r"per_round = 1 to 9 of 9; give a number$"):
        method.plan(problem(Binomial(0.3), 9, records=200))


def test_a_published_bound_that_credits_a_fixed_number_says_nothing_of_a_law():
    method = Fedavg(rounds=8, local_steps=2, sampling_rate=0.2)
    fixed, listed, drawn = (method.plan(problem(law, 9, records=200)) for law in (6, (6, 6), (2, 6)))
    assert fixed.epsilon_paper == listed.epsilon_paper < drawn.epsilon_paper == math.inf
    assert drawn.as_json()["totals"]["epsilon_paper"] is None and fixed.epsilon_accounted == drawn.epsilon_accounted
    assert published_claims(fixed) == published_claims(listed) != {} == published_claims(drawn)
    assert "epsilon_paper" not in spent_so_far(drawn, None, 1, 4) and "epsilon_paper" in spent_so_far(fixed, None, 1, 4)
    by_paper = Budget(9.0, 1e-5, "paper")
    assert method.plan(dataclasses.replace(problem((6, 6), 9, records=200), budget=by_paper)).rounds == 8
    with pytest.raises(InputError, match=r"privacy.calibration = paper: .* fixed number of silos in a round"):
        method.plan(dataclasses.replace(problem((2, 6), 9, records=200), budget=by_paper))


def test_a_plan_shows_the_law_and_a_fixed_number_as_it_is():
    assert Mbsgd(rounds=3).plan(problem(7)).as_json()["totals"]["participants"] == 7
    shown = Mbsgd(rounds=3).plan(problem((5, 10, 20))).as_json()["totals"]["participants"]
    assert shown == {
        "law": [5, 10, 20],
        "expected": pytest.approx(35 / 3),
        "M": pytest.approx(60 / 7),
        "M_prime": pytest.approx(1 / math.sqrt((1 / 25 + 1 / 100 + 1 / 400) / 3)),
    }
    shown = Mbsgd(rounds=3).plan(problem(Binomial(0.4))).as_json()["totals"]["participants"]
    assert shown["law"] == {"binomial": 0.4}
    drawn, fixed = (Mbsgd(rounds=5).plan(problem(law)) for law in ((N, 1), N))
    assert not is_shown(drawn, 1, 3) and is_shown(fixed, 1, 3)  # one asks the accountant at length


@pytest.mark.parametrize("law", [(1, 3), Binomial(0.25)], ids=str)
def test_agreements_carry_the_law_and_plans_differ_by_it(law, federate, toy):
    agreement = federate(Mbsgd(rounds=2), toy, participants=law).agreement
    assert Agreement.from_bytes(agreement.to_bytes()) == agreement
    digests = {Mbsgd(rounds=2).plan(problem(given)).digest for given in (3, (3,), (1, 3), (3, 1), law, Binomial(0.3))}
    assert len(digests) == (6 if law == Binomial(0.25) else 5)


# The config


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("[]", r"participation.silos_per_round = \[\].*at least 1 item"),
        ("[5, 0]", r"participation.silos_per_round.1 = 0: it should be greater than or equal to 1"),
        ("[5, -3]", r"participation.silos_per_round.1 = -3"),
        ("[5, 26]", r"participation.silos_per_round lists 26, which is more than the 25 silos there are"),
        ("26", r"participation.silos_per_round = 26 is more than the 25 silos there are"),
        ("[2.5]", r"participation.silos_per_round.0 = 2.5: it should be a valid integer"),
        ("true", r"participation.silos_per_round = true: true and false are not numbers"),
        ("{binomial: 0}", r"participation.silos_per_round.binomial = 0: it should be greater than 0"),
        ("{binomial: 1.1}", r"participation.silos_per_round.binomial = 1.1: it should be less than or equal to 1"),
        ("{uniform: 0.3}", r"participation.silos_per_round.uniform is not a known key"),
        ("half", r"participation.silos_per_round = 'half': it should be a whole number"),
    ],
)
def test_what_is_no_law_is_refused_by_its_key(file, given, words):
    with pytest.raises(InputError, match=words):
        make_plan(load_experiment(file, [f"participation.silos_per_round={given}"]))


@pytest.mark.parametrize(
    ("given", "law"),
    [
        ("null", N),
        ("4", 4),
        ("[5, 10, 20]", (5, 10, 20)),
        ("{binomial: 0.8}", Binomial(0.8)),
        ("{binomial: 1}", Binomial(1)),
    ],
)
def test_a_law_is_read_from_a_config_and_written_back(file, given, law):
    config = load_experiment(file, [f"participation.silos_per_round={given}"])
    assert make_plan(config).problem.participants == law
    assert validated(ExperimentConfig, config.model_dump(mode="json"), "again") == config


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((), "0 numbers"),
        ((0,), "0 participants"),
        ((1, N + 1), "26 participants"),
        ((1,) * 70_000, "70000 numbers"),
        (0, "0 participants"),
        (N + 1, "26 participants"),
    ],
)
def test_a_problem_refuses_what_is_no_law(given, words):
    with pytest.raises(InputError, match=words):
        problem(given)
