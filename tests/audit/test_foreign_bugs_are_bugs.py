"""Each planted silo breaks its plan's guarantee; on a plain silo the same attack shows nothing.

No part of the audit is used. An attack guesses which of two neighbouring data sets a silo has, over many keys. Let it
be right at rate p on one and wrong at rate q on the other. Then epsilon >= ln((p - delta) / q) for every mechanism that
is (epsilon, delta)-DP. Clopper and Pearson's limits replace p and q. The attacker knows the place of the record that
differs: the guarantee holds for each place of the split.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import binom, norm

from fedcore.accounting.calibration import Budget
from fedcore.accounting.composition import spent
from fedcore.accounting.gaussian import epsilon_of
from fedcore.algorithms import METHODS
from fedcore.arrays import Vector
from fedcore.data.records import Records
from fedcore.federation.in_process import InProcess
from fedcore.federation.rounds import RunContext, rounds
from fedcore.ledger.memory import MemoryLedger
from fedcore.losses import Logistic
from fedcore.mechanisms.secret_sample import poisson_sample, sample_stream
from fedcore.messages import Query
from fedcore.planning.plan import Plan
from fedcore.planning.problem import SiloFacts
from fedcore.randomness import generator
from fedcore.silo.agreement import Agreement
from fedcore.silo.keys import SecretKeys
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.question import RoundQuestion
from fedcore.silo.site import Site
from tests.audit.foreign_bugs import FIVE, FOREIGN, PLANS, SHOWS
from tests.epsilon_shown import epsilon_shown
from tests.problems import problem_of
from tests.selection import some_in_make_test

EPSILON, DELTA = 2.0, 1e-5
SURE = 0.99
"""Confidence of each of the two limits."""
Pair = tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


@cache
def agreed(bug: str) -> tuple[Any, Plan]:
    name, hyperparameters, n, dim = PLANS[bug]
    method = METHODS[name](**hyperparameters)
    return method, method.plan(problem_of((SiloFacts("ash", n),), dim, 1.0, 0.25, 10.0, 1, Budget(EPSILON, DELTA)))


def question(plan: Plan, phase: int, round: int, w: Vector) -> RoundQuestion:
    query = Query("run", plan.digest, phase, round, ("ash",), {"w": w})
    return RoundQuestion("run", phase, round, query.arrays, query.digests(["ash"])["ash"])


@cache
def constant(bug: str) -> tuple[RoundQuestion, ...]:
    """All rounds, each about the model 0."""
    plan = agreed(bug)[1]
    zero = np.zeros(plan.problem.objective.dim)
    return tuple(question(plan, phase.index, r, zero) for phase in plan.phases for r in range(1, phase.rounds + 1))


@cache
def ground(bug: str) -> tuple[RoundQuestion, ...]:
    """Models next to 0 for which `samples_without_run_key` always has place 0 in its sample."""
    plan = agreed(bug)[1]
    event, found = plan.phases[0].event("ash", 1), []
    for round in range(1, plan.rounds + 1):
        for number in range(10_000):
            asked = question(plan, 1, round, np.full(plan.problem.objective.dim, 1e-12 * number))
            # The attacker's own copy of the draw, without the silo.
            sample = poisson_sample(sample_stream(b"", asked.digest + (1).to_bytes(8, "little")), event.rate, 41)
            if 0 in sample:
                found.append(asked)
                break
    assert len(found) == plan.rounds
    return tuple(found)


def opened(bug: str, opener: Callable[..., PrivateSilo], number: int, X: np.ndarray, y: np.ndarray) -> PrivateSilo:
    method, plan = agreed(bug)
    silo = opener("ash", Records(X, y), SecretKeys(b"key %d" % number), MemoryLedger("ash"))
    silo.approve("run", plan, method, Logistic())
    return silo


def answers(bug: str, silo: PrivateSilo, questions: tuple[RoundQuestion, ...]) -> list[Vector]:
    plan = agreed(bug)[1]
    return [silo.answer(asked, plan.phases[asked.phase - 1]).payload for asked in questions]


@cache
def order(bug: str, number: int) -> np.ndarray:
    """Rows of the file in the order of the split under this key."""
    n, dim = PLANS[bug][2:]
    silo = opened(bug, PrivateSilo, number, np.zeros((n, dim)), np.ones(n))
    return generator(silo._runs["run"].key, "split").permutation(n)


def one_record(bug: str, number: int, place: int, length: float = 4.0, others: float = 0.0) -> Pair:
    """Neighbours that differ in the record at `place` of the split: `length` along coordinate 0, or back."""
    n, dim = PLANS[bug][2:]
    X = np.zeros((n, dim))
    X[:, 1] = others
    row = order(bug, number)[place]
    X[row] = 0.0
    pair = [X.copy(), X.copy()]
    pair[0][row, 0], pair[1][row, 0] = length, -length
    return (pair[0], np.ones(n)), (pair[1], np.ones(n))


def outlier(bug: str, number: int) -> Pair:
    """n equal records; and the same, one of them 1e6 times as long."""
    n, dim = PLANS[bug][2:]
    X = np.zeros((n, dim))
    X[:, 0] = 1.0
    other = X.copy()
    other[number % n, 0] = 1e6
    return (X, np.ones(n)), (other, np.ones(n))


def noise_on_sum(plan: Plan, phase: int) -> float:
    share = plan.phases[phase - 1].by_silo["ash"]
    return share.sigma * share.batch


def halves(plan: Plan, seen: list[Vector]) -> float:
    """Score, largest where the record goes along coordinate 0: its gradient at 0 is half of minus it."""
    return -(seen[0][0] - seen[0][plan.problem.objective.dim // 2]) * plan.phases[0].batch


def first_coordinate(plan: Plan, seen: list[Vector]) -> float:
    """Sum over answers of coordinate 0, in standard deviations of its noise."""
    share = plan.phases[0].by_silo["ash"]
    return -sum(payload[0] for payload in seen) / (share.sigma * math.sqrt(len(seen)))


def across_phases(plan: Plan, seen: list[Vector]) -> float:
    """Round 1 of phase 1 minus that of phase 2, each in standard deviations of its noise."""
    first, second = seen[0], seen[plan.phases[0].rounds]
    return -(first[0] / plan.phases[0].by_silo["ash"].sigma - second[0] / plan.phases[1].by_silo["ash"].sigma)


# By bug: neighbours under a key, questions, score, the score from which the first data set is guessed, and keys.
ATTACKS: dict[str, tuple[Callable[[str, int], Pair], Any, Any, float, int]] = {
    "noise_repeated_over_halves": (lambda bug, k: one_record(bug, k, 0), constant, halves, 0.0, 200),
    "clips_by_bounds_of_other_records": (
        lambda bug, k: one_record(bug, k, 0, 1000.0, 1.0),
        constant,
        first_coordinate,
        10.0,
        200,
    ),
    "scales_by_longest_record": (outlier, constant, first_coordinate, 7.0, 200),
    "samples_without_run_key": (lambda bug, k: one_record(bug, k, 0), ground, first_coordinate, 0.0, 200),
    "pieces_all_start_at_zero": (lambda bug, k: one_record(bug, k, 0), constant, first_coordinate, 0.5, 200),
    "noise_shared_by_phases": (lambda bug, k: one_record(bug, k, 0), constant, across_phases, 0.0, 200),
    "last_of_odd_records_always_sampled": (
        lambda bug, k: one_record(bug, k, PLANS[bug][2] - 1),
        constant,
        first_coordinate,
        0.0,
        200,
    ),
}


def guesses(bug: str, opener: Callable[..., PrivateSilo]) -> tuple[int, int, int]:
    """Numbers of guesses of the first data set, among all keys: with it, and with its neighbour."""
    neighbours, asked, score, threshold, keys = ATTACKS[bug]
    plan, questions = agreed(bug)[1], asked(bug)
    count = [0, 0]
    for number in range(keys):
        for held, (X, y) in enumerate(neighbours(bug, number)):
            seen = answers(bug, opened(bug, opener, number, X, y), questions)
            count[held] += int(score(plan, seen) > threshold)
    return count[0], count[1], keys


@pytest.mark.parametrize("bug", some_in_make_test(sorted(ATTACKS), ["noise_shared_by_phases"]))
def test_attack_shows_more_than_the_charge_and_nothing_of_a_plain_silo(bug):
    planted, plain = guesses(bug, FOREIGN[bug]), guesses(bug, PrivateSilo)
    shown, none = (epsilon_shown(*counts, DELTA, 1 - SURE) for counts in (planted, plain))
    print(f"\n{bug}: planted {planted} epsilon >= {shown:.2f}, plain {plain} {none:.2f}")
    assert shown > 1.25 * EPSILON
    assert none < 0.75 * EPSILON


def without_noise(
    bug: str, opener: Callable[..., PrivateSilo], number: int, place: int, asked: RoundQuestion
) -> tuple[float, PrivateSilo]:
    """Number of the answers to `asked` with the record at `place`, by one without noise; and the silo."""
    plan = agreed(bug)[1]
    (X, y), _ = one_record(bug, number, place)
    silo = opened(bug, opener, number, X, y)
    phase = plan.phases[asked.phase - 1]
    shard = silo._shard(asked, silo._runs["run"], phase)
    shard.noise = 0.0
    silo._shard = lambda *_: shard
    return float(np.rint(-silo.answer(asked, phase).payload[0] * shard.count * phase.schedule.answers)), silo


def delta_of_means(weights: np.ndarray, steps: int, sigma: float, clip: float, epsilon: float) -> float:
    """delta(epsilon) of one round's mean, by quadrature: N(2 j clip, steps sigma^2), j of these weights, against j = 0.

    The pair: all other records point one way, and the record in question with them or against them; a sample of fixed
    size has another in its place. sigma: of the noise on one step's sum.
    """
    spread = math.sqrt(steps) * sigma
    means = 2 * clip * np.arange(steps + 1)

    def excess(v: float) -> float:
        return max(0.0, float(weights @ norm.pdf(v, means, spread) - math.exp(epsilon) * norm.pdf(v, 0.0, spread)))

    low, high = -10 * spread, means[-1] + 10 * spread
    return quad(excess, low, high, limit=400, points=list(np.linspace(low, high, 41)))[0]


def test_a_record_is_in_all_local_steps_or_in_none():
    bug = "one_sample_for_all_local_steps"
    plan, asked = agreed(bug)[1], constant(bug)[0]
    phase, event = plan.phases[0], plan.phases[0].event("ash", 1)
    K, rate, keys = phase.schedule.answers, event.rate, 400
    planted, plain = (
        np.array([without_noise(bug, opener, number, 0, asked)[0] for number in range(keys)])
        for opener in (FOREIGN[bug], PrivateSilo)
    )
    assert set(planted) == {0.0, float(K)}
    assert binom.ppf(1e-4, keys, rate) <= (planted > 0).sum() <= binom.ppf(1 - 1e-4, keys, rate)
    # The plain silo's counts are binomial, as charged: never all, and with that variance.
    assert plain.max() < K / 2
    assert abs(plain.mean() - K * rate) < 4 * math.sqrt(K * rate * (1 - rate) / keys)
    assert abs(plain.var() / (K * rate * (1 - rate)) - 1) < 4 * math.sqrt(2.5 / keys)

    both = np.zeros(K + 1)
    both[0], both[K] = 1 - rate, rate
    noise = noise_on_sum(plan, 1)
    broken = delta_of_means(both, K, noise, phase.question.clip, EPSILON)
    kept = delta_of_means(binom.pmf(np.arange(K + 1), K, rate), K, noise, phase.question.clip, EPSILON)
    exact = spent([replace(event, count=phase.rounds, sigma=event.sigma / math.sqrt(K))], DELTA)
    print(
        f"\n{bug}: planted {(planted > 0).sum()} of {keys} rounds all {K} steps, else none; plain at "
        f"most {plain.max():.0f}; delta(2) of one round {broken:.2e}, {kept:.2e}; epsilon of all rounds {exact:.2f}"
    )
    assert kept < DELTA
    assert broken > 100 * DELTA
    assert exact > 4 * EPSILON


def test_the_samples_of_local_steps_are_as_wrong(monkeypatch):
    """Attacks the two bugs that show in samples of fixed size, with 41 records; Poisson samples are above."""
    setup = ("fedavg", {"rounds": 3, "local_steps": 20, "sampling_rate": 0.1, "step": 1e-3}, 41, 16)
    bug = "local steps"
    monkeypatch.setitem(PLANS, bug, setup)
    asked = constant(bug)[0]
    last = FOREIGN["last_of_odd_records_always_sampled"]
    assert all(without_noise(bug, last, number, 40, asked)[0] == 20 for number in range(20))
    assert all(without_noise(bug, PrivateSilo, number, 40, asked)[0] < 12 for number in range(20))
    # Other keys, the same samples: the same count at any place.
    public = FOREIGN["samples_without_run_key"]
    counts = [
        {without_noise(bug, opener, number, 3, asked)[0] for number in range(20)} for opener in (public, PrivateSilo)
    ]
    assert len(counts[0]) == 1 and len(counts[1]) > 2


def test_a_record_of_the_first_phase_is_in_all_phases(monkeypatch):
    bug = "phases"
    monkeypatch.setitem(PLANS, bug, PLANS["noise_shared_by_phases"])
    plan = agreed(bug)[1]
    assert len(plan.phases) == 3
    firsts = [asked for asked in constant(bug) if asked.round == 1]
    for opener, seen in ((FOREIGN["pieces_all_start_at_zero"], [1, 1, 1]), (PrivateSilo, [1, 0, 0])):
        assert [without_noise(bug, opener, 1, 0, asked)[0] for asked in firsts] == seen
    # Each phase is charged the whole of epsilon, for records of its own: on the same ones they compose.
    composed = [replace(phase.events("ash")[0], start=0, stop=1) for phase in plan.phases]
    assert spent(composed, DELTA) > 1.5 * EPSILON


@pytest.mark.parametrize("bug", sorted(FOREIGN))
def test_a_planted_silo_goes_through_a_site_like_any_other(bug):
    """All rounds are answered and charged as planned, and the last one is sent again with the same bytes."""
    method, plan = agreed(bug)
    n, dim = PLANS[bug][2:]
    draws = np.random.default_rng(3)
    records = Records(draws.standard_normal((n, dim)), np.where(draws.random(n) < 0.5, 1.0, -1.0))
    silo = FOREIGN[bug]("ash", records, SecretKeys(b"key"), MemoryLedger("ash"))
    site = InProcess(Site([silo]), Agreement("run", plan.problem, method, Logistic(), plan.digest))
    site.open()
    played = list(rounds(RunContext("run", plan, method, b"public"), method.init(np.zeros(dim)), site.ask))
    query, releases, _ = played[-1]
    assert len(played) == plan.rounds == silo.computed
    assert site.ask(query)[0].payload.tobytes() == releases[0].payload.tobytes()
    assert site.accounts("run")[0].epsilon == pytest.approx(plan.silo_epsilon("ash"))
    assert abs(plan.silo_epsilon("ash") - EPSILON) < 1e-3


def epsilon_of_hits(weights: np.ndarray, shift: float, answers: int) -> float:
    """Least epsilon at DELTA of a sum of answers, in its deviations: j hits, of these weights, either way."""
    v, step = np.linspace(-20.0, 20.0, 80_001, retstep=True)
    means = shift * np.arange(len(weights))[:, None] / math.sqrt(answers)
    one, other = (weights @ norm.pdf(v, sign * means, 1.0) for sign in (1, -1))
    return brentq(lambda e: np.maximum(0.0, one - math.exp(e) * other).sum() * step - DELTA, 0.0, 60.0)


@pytest.mark.parametrize(
    ("bug", "epsilon"),
    [("samples_without_run_key", 8.2), ("last_of_odd_records_always_sampled", 8.2), ("pieces_all_start_at_zero", 5.7)],
)
def test_a_secret_split_does_not_mend_it(bug, epsilon):
    """A record at a random place is hit by all R answers if the place is the bug's, else as planned."""
    plan = agreed(bug)[1]
    phase, event, R = plan.phases[0], plan.phases[0].event("ash", 1), plan.rounds
    places = plan.problem.n if event.sampling == "poisson" else R
    chance = binom.pmf(np.arange(R + 1), R, event.rate) if event.sampling == "poisson" else np.eye(R + 1)[0]
    weights = chance * (1 - 1 / places)
    weights[R] += 1 / places
    shift = phase.question.clip / noise_on_sum(plan, 1)
    assert epsilon_of_hits(weights, shift, R) == pytest.approx(epsilon, abs=0.06)
    if event.sampling == "poisson":
        assert epsilon_of_hits(chance, shift, R) <= EPSILON
    # A record at a known place: all answers are about it.
    assert epsilon_of(2 * shift * math.sqrt(R), DELTA) == pytest.approx(33, abs=0.5)


def test_lists_name_the_same_bugs():
    assert set(FOREIGN) == set(PLANS) == set(SHOWS) and len(FOREIGN) == 8
    assert len(set(FIVE)) == 5 and set(FIVE) < set(FOREIGN)
    assert all(opener.__doc__ for opener in FOREIGN.values())
