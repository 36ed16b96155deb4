"""What silos send, for each way of asking them: its noise, and what one record does to it."""

import math
import warnings
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from fedcore.data.records import Records
from fedcore.ledger.ledger import MemoryLedger
from fedcore.losses import Squared
from fedcore.planning.phase import DIFFERENCE
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.question import Question
from tests.contract.epsilon_by_hand import events_by_hand
from tests.contract.methods import bare
from tests.epsilon_shown import epsilon_of_scores


def test_equal_seeds_give_equal_bits(asker, federate, toy):
    first = [[r.payload.tobytes() for r in releases] for _, releases, _ in federate(asker, toy).play()]
    again = [[r.payload.tobytes() for r in releases] for _, releases, _ in federate(asker, toy).play()]
    other = [[r.payload.tobytes() for r in releases] for _, releases, _ in federate(asker, toy, seed=1).play()]
    assert first == again
    assert not {b for row in first for b in row} & {b for row in other for b in row}


def pure_noise(federate, asker, d=3000, n=16, names=("a", "b", "c"), **changes):
    """Messages of silos whose gradients are all zero, in units of the planned sigma, by (silo, phase, round)."""
    federation = federate(bare(asker), {name: (np.zeros((n, d)), np.ones(n)) for name in names}, **changes)
    messages = {}
    for query, releases, _ in federation.play():
        phase = federation.plan.phases[query.phase - 1].at(query.round)
        step = [query.arrays[name] for name in ("w", "before")] if phase.answer == DIFFERENCE else None
        unit = 1.0 if step is None else np.linalg.norm(step[0] - step[1])
        for r in releases:
            # A message is the mean of its answers.
            sigma = phase.by_silo[r.silo].sigma * unit / math.sqrt(phase.answers)
            messages[r.silo, r.phase, r.round] = r.payload / sigma
    return messages


def test_noise_is_independent_over_silos_rounds_seeds_and_runs(asker, federate):
    samples = []
    for changes in ({}, {"seed": 1}, {"run": "another"}, {"epsilon": 2.0}):
        samples += pure_noise(federate, asker, **changes).values()
    correlation = np.corrcoef(samples)
    np.fill_diagonal(correlation, 0.0)
    assert np.abs(correlation).max() < 6 / math.sqrt(3000)


def test_noise_has_the_planned_sigma(asker, federate):
    samples = np.array(list(pure_noise(federate, asker, epsilon=0.7).values()))
    low, high = stats.chi2.ppf([1e-5, 1 - 1e-5], samples.size)
    assert low < (samples**2).sum() < high
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], samples.shape[1])
    assert ((low < (samples**2).sum(1)) & ((samples**2).sum(1) < high)).all()
    assert abs(samples.mean()) < 5 / math.sqrt(samples.size)
    assert stats.kstest(samples.ravel()[:20000], "norm").pvalue > 1e-4


def test_silos_that_were_given_one_key_do_not_share_noise(asker, federate):
    """Else equal messages of two silos would tell that their records are equal."""
    d = 1000
    messages = pure_noise(federate, asker, d=d, names=("a", "b"), key=lambda name: b"one key for all silos")
    for silo, phase, round in messages:
        if silo == "a":
            both = np.corrcoef(messages["a", phase, round], messages["b", phase, round])
            assert abs(both[0, 1]) < 6 / math.sqrt(d)


@pytest.mark.parametrize("sites", [2, 3])
def test_result_does_not_depend_on_where_silos_live(asker, federate, toy, sites):
    together, apart = federate(asker, toy), federate(asker, toy, sites=sites)
    assert together.final().tobytes() == apart.final().tobytes()


@pytest.mark.parametrize("x, y", [([1, 1, 1, 1], np.nan), ([np.nan, 1, 1, 1], 1), ([np.inf, -np.inf, 0, 0], np.inf)])
def test_a_record_without_a_finite_gradient_counts_as_zero_in_silence(asker, federate, toy, x, y):
    """A message that is not a number would tell of the record, whatever noise was added."""
    X, labels = (part.copy() for part in toy["ash"])
    X[5], labels[5] = x, y
    zero = X.copy()
    zero[5] = 0.0
    queries = federate(asker, toy, epsilon=None).queries()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning that becomes an exception is an outcome that depends on records
        poisoned = federate(asker, {**toy, "ash": (X, labels)}, epsilon=None)
        messages = [poisoned.ask(query)[0].payload for query in queries]
    zeroed = federate(asker, {**toy, "ash": (zero, toy["ash"][1])}, epsilon=None)
    for query, message in zip(queries, messages, strict=True):
        np.testing.assert_allclose(message, zeroed.ask(query)[0].payload, rtol=1e-12, atol=1e-14)


def test_replacing_one_record_moves_only_the_messages_of_its_position_and_by_at_most_2C_over_K(full_asker, federate):
    """The worst pair: a record that pulls with all its clipped force, replaced by one that pushes as hard."""
    full_asker = bare(full_asker)
    n, C, rng = 16, 0.7, np.random.default_rng(5)
    X, y = 10 * rng.standard_normal((n, 3)), np.full(n, 1e6)
    base = federate(full_asker, {"a": (X, y), "b": (X, -y)}, epsilon=None, clip=C, diameter=2.0)
    queries = base.queries()
    before = {(q.phase, q.round): base.ask(q) for q in queries}
    batches = {(p, r): (range(start, stop), K) for p, r, start, stop, K, _ in events_by_hand(base.plan, "a")}
    changed, closest = [], 0.0
    for j in range(n):
        flipped = y.copy()
        flipped[j] = -1e6
        neighbour = federate(full_asker, {"a": (X, flipped), "b": (X, -y)}, epsilon=None, clip=C, diameter=2.0)
        moved = set()
        for query in queries:
            address = (query.phase, query.round)
            (mine, other), (mine_before, other_before) = neighbour.ask(query), before[address]
            assert other.payload.tobytes() == other_before.payload.tobytes()
            bound = 2 * C / batches[address][1]
            distance = float(np.linalg.norm(mine.payload - mine_before.payload))
            assert distance <= bound * (1 + 1e-9)
            closest = max(closest, distance / bound)
            if distance > 0:
                moved.add(address)
        assert len({phase for phase, _ in moved}) <= 1
        changed.append(frozenset(moved))
    by_position = [frozenset(a for a, (part, _) in batches.items() if p in part) for p in range(n)]
    assert Counter(changed) == Counter(by_position)
    assert closest > 1 - 1e-9


def test_an_attack_on_the_worst_pair_stays_below_epsilon_and_comes_near_it(full_asker, federate):
    """Likelihood ratio test of whoever knows all but one record: its error rates bound epsilon from below."""
    n, runs, epsilon, delta = 8, 900, 2.0, 1e-2
    probe = federate(full_asker, {"a": (np.ones((n, 1)), np.arange(n))}, epsilon=epsilon, delta=delta)
    plan, key = probe.plan, probe.silos["a"]._key
    touched = {(p, r): (K, sigma) for p, r, start, _, K, sigma in events_by_hand(plan, "a") if start == 0}
    scores = {1e6: [], -1e6: []}
    for number in range(runs):
        run = f"run {number}"
        labels = PrivateSilo("a", Records(np.ones((n, 1)), np.arange(float(n))), key, MemoryLedger("a"))
        labels.approve(run, plan, full_asker, Squared())
        first = int(labels._runs[run].y[0])  # the row at position 0 of this run's split
        for label, found in scores.items():
            y = np.zeros(n)
            y[first] = label
            silo = PrivateSilo("a", Records(np.ones((n, 1)), y), key, MemoryLedger("a"))
            silo.approve(run, plan, full_asker, Squared())
            score = 0.0
            for (p, r), (K, sigma) in touched.items():
                asked = Question(run, p, r, {"w": np.zeros(1)}, b"q" * 32)
                message = silo.answer(asked, plan.phases[p - 1]).payload[0]
                score += plan.phases[p - 1].answers * message * 2 / K / sigma**2
            found.append(score)
    # y = 1e6 pulls the mean gradient to -C/K, y = -1e6 pushes it to +C/K.
    low, high = np.sort(scores[1e6]), np.sort(scores[-1e6])
    mu = (high.mean() - low.mean()) / math.sqrt((high.var() + low.var()) / 2)
    answers = [plan.phases[p - 1].answers for p, _ in touched]
    mu_squared = [a * (2 / (K * sigma)) ** 2 for a, (K, sigma) in zip(answers, touched.values(), strict=True)]
    expected = math.sqrt(sum(mu_squared))
    assert mu == pytest.approx(expected, abs=6 * math.sqrt(2 / runs))
    assert 0.2 * epsilon < epsilon_of_scores(high, low, delta) <= epsilon
