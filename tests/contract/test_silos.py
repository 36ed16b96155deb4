"""Messages of silos, for each way of asking them: their noise, and their movement by one record."""

import math
import warnings
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from fedcore.data.records import Records
from fedcore.ledger.memory import MemoryLedger
from fedcore.losses import Squared
from fedcore.planning.questions.question import DifferenceQuestion
from fedcore.silo.keys import SecretKeys, SeededKeys
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.question import RoundQuestion
from tests.contract.epsilon_by_hand import events_by_hand
from tests.contract.methods import bare
from tests.epsilon_shown import epsilon_of_scores


def test_equal_seeds_give_equal_bits(asker, federate, toy):
    first = [[r.payload.tobytes() for r in releases] for _, releases, _ in federate(asker, toy).play()]
    again = [[r.payload.tobytes() for r in releases] for _, releases, _ in federate(asker, toy).play()]
    other = [[r.payload.tobytes() for r in releases] for _, releases, _ in federate(asker, toy, seed=1).play()]
    assert first == again
    assert not {b for row in first for b in row} & {b for row in other for b in row}


def step_of(query, phase):
    """w - before, of an answer about a difference of gradients; None of others."""
    return query.arrays["w"] - query.arrays["before"] if phase.question.kind == DifferenceQuestion.kind else None


def unit_of(step):
    """Unit of sensitivity and noise."""
    return 1.0 if step is None else float(np.linalg.norm(step))


def opposed(step, d, pull=1e6):
    """A pair of records (x, y) whose squared losses pull as hard as possible in opposite directions.

    That is so for their gradients, and for the differences of these over the step. A difference is x (x . step): along
    the step it is never negative, so the pair points across it.
    """
    along = np.eye(d)[-1] if step is None else step / np.linalg.norm(step)
    across = np.linalg.svd(along[None, :])[2][-1]
    return [(sign * pull * across + along, pull**3) for sign in (1.0, -1.0)]


def pure_noise(federate, asker, d=3000, n=16, names=("a", "b", "c"), **changes):
    """Messages of silos with zero gradients, in units of the planned sigma, by (silo, phase, round)."""
    federation = federate(bare(asker), {name: (np.zeros((n, d)), np.ones(n)) for name in names}, **changes)
    messages = {}
    for query, releases, _ in federation.play():
        phase = federation.plan.phases[query.phase - 1].at(query.round)
        unit = unit_of(step_of(query, phase))
        for r in releases:
            # A message is the mean of its answers.
            sigma = phase.by_silo[r.silo].sigma * unit / math.sqrt(phase.schedule.answers)
            messages[r.silo, r.phase, r.round] = r.payload / sigma
    return messages


def independent(samples):
    correlation = np.corrcoef(samples)
    np.fill_diagonal(correlation, 0.0)
    return np.abs(correlation).max() < 6 / math.sqrt(3000)


def test_noise_of_secret_keys_is_independent_over_silos_rounds_keys_runs_and_plans(asker, federate):
    samples = []
    for changes in ({}, {"key": b"other"}, {"run": "another"}, {"epsilon": 2.0}):
        keys = SecretKeys(changes.pop("key", b"key"))
        samples += pure_noise(federate, asker, key=lambda name, keys=keys: keys, **changes).values()
    assert independent(samples)


def test_simulated_noise_is_independent_over_silos_rounds_seeds_and_repetitions(asker, federate):
    samples = []
    for keys in (SeededKeys(0), SeededKeys(1), SeededKeys(0, 1)):
        samples += pure_noise(federate, asker, key=lambda name, keys=keys: keys).values()
    assert independent(samples)


@pytest.mark.parametrize(
    "changes", [{"run": "another"}, {"epsilon": 2.0}, {"diameter": 4.0}, {"n": 20}, {"names": ("c", "b", "d")}], ids=str
)
def test_simulated_noise_depends_on_no_setting(asker, federate, changes):
    """Messages are noise over the planned sigma here, so they are equal up to rounding."""
    d = 40
    first, other = pure_noise(federate, asker, d=d), pure_noise(federate, asker, d=d, **changes)
    both = first.keys() & other.keys()
    assert {silo for silo, _, _ in both} >= {"b", "c"}
    for address in both:
        np.testing.assert_allclose(other[address], first[address], rtol=1e-9)


def test_noise_has_the_planned_sigma(asker, federate):
    samples = np.array(list(pure_noise(federate, asker, epsilon=0.7).values()))
    low, high = stats.chi2.ppf([1e-5, 1 - 1e-5], samples.size)
    assert low < (samples**2).sum() < high
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], samples.shape[1])
    assert ((low < (samples**2).sum(1)) & ((samples**2).sum(1) < high)).all()
    assert abs(samples.mean()) < 5 / math.sqrt(samples.size)
    assert stats.kstest(samples.ravel()[:20000], "norm").pvalue > 1e-4


def test_silos_that_were_given_one_key_do_not_share_noise(asker, federate):
    """With shared noise equal messages of two silos would reveal that their records are equal."""
    d = 1000
    messages = pure_noise(federate, asker, d=d, names=("a", "b"), key=lambda name: SecretKeys(b"one key for all silos"))
    for silo, phase, round in messages:
        if silo == "a":
            both = np.corrcoef(messages["a", phase, round], messages["b", phase, round])
            assert abs(both[0, 1]) < 6 / math.sqrt(d)


@pytest.mark.parametrize("sites", [2, 3])
def test_result_does_not_depend_on_where_silos_live(asker, federate, toy, sites):
    one_site, several = federate(asker, toy), federate(asker, toy, sites=sites)
    assert one_site.final().tobytes() == several.final().tobytes()


@pytest.mark.parametrize("x, y", [([1, 1, 1, 1], np.nan), ([np.nan, 1, 1, 1], 1), ([np.inf, -np.inf, 0, 0], np.inf)])
def test_a_record_without_a_finite_gradient_counts_as_zero_in_silence(asker, federate, toy, x, y):
    """A message with NaN would reveal the record, whatever noise was added."""
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
    n, d, C, rng = 16, 3, 0.7, np.random.default_rng(5)
    X, y = 10 * rng.standard_normal((n, d)), np.full(n, 1e6)

    def with_record(j, x, label):
        features, labels = X.copy(), y.copy()
        features[j], labels[j] = x, label
        return federate(full_asker, {"a": (features, labels), "b": (X, -y)}, epsilon=None, clip=C, diameter=2.0)

    base = with_record(0, X[0], y[0])
    queries = base.queries()
    theirs = {(q.phase, q.round): base.ask(q)[1].payload.tobytes() for q in queries}
    phases = {(q.phase, q.round): base.plan.phases[q.phase - 1].at(q.round) for q in queries}
    batches = {(p, r): (range(start, stop), K) for p, r, start, stop, K, _ in events_by_hand(base.plan, "a")}
    steps = [step_of(query, phases[query.phase, query.round]) for query in queries]
    pairs = [opposed(None, d), *(opposed(step, d) for step in steps if step is not None)]
    changed, closest = [], dict.fromkeys({phase.question.kind for phase in phases.values()}, 0.0)
    for j in range(n):
        moved = set()
        for pair in pairs:
            one, neighbour = (with_record(j, *record) for record in pair)
            for query, step in zip(queries, steps, strict=True):
                address = (query.phase, query.round)
                (mine, other), (mine_after, other_after) = one.ask(query), neighbour.ask(query)
                assert other.payload.tobytes() == other_after.payload.tobytes() == theirs[address]
                bound = 2 * phases[address].question.clip * unit_of(step) / batches[address][1]
                distance = float(np.linalg.norm(mine.payload - mine_after.payload))
                assert distance <= bound * (1 + 1e-9)
                kind = phases[address].question.kind
                closest[kind] = max(closest[kind], distance / bound)
                if distance > 0:
                    moved.add(address)
        assert len({phase for phase, _ in moved}) <= 1
        changed.append(frozenset(moved))
    by_position = [frozenset(a for a, (part, _) in batches.items() if p in part) for p in range(n)]
    assert Counter(changed) == Counter(by_position)
    assert min(closest.values()) > 1 - 1e-9


def test_an_attack_on_the_worst_pair_stays_below_epsilon_and_comes_near_it(full_asker, federate):
    """Likelihood ratio test by an attacker who knows all but one record: its errors bound epsilon below."""
    n, d, runs, epsilon, delta = 8, 2, 900, 2.0, 1e-2
    probe = federate(full_asker, {"a": (np.zeros((n, d)), np.arange(n))}, epsilon=epsilon, delta=delta)
    plan, key = probe.plan, SecretKeys(b"k" * 32)
    touched = {(p, r): (K, sigma) for p, r, start, _, K, sigma in events_by_hand(plan, "a") if start == 0}
    step = np.array([0.0, 1.0])  # of length one, so that all noise is in the unit of its sigma
    asked_about = {"gradient": {"w": np.zeros(d)}, DifferenceQuestion.kind: {"w": np.zeros(d), "before": -step}}
    pair = opposed(step, d)
    (across, _), scores = pair[0], ([], [])
    for number in range(runs):
        run = f"run {number}"
        labels = PrivateSilo("a", Records(np.zeros((n, d)), np.arange(float(n))), key, MemoryLedger("a"))
        labels.approve(run, plan, full_asker, Squared())
        first = int(labels._runs[run].y[0])  # the row at position 0 of this run's split
        for found, (x, label) in zip(scores, pair, strict=True):
            X, y = np.zeros((n, d)), np.zeros(n)
            X[first], y[first] = x, label
            silo = PrivateSilo("a", Records(X, y), key, MemoryLedger("a"))
            silo.approve(run, plan, full_asker, Squared())
            score = 0.0
            for (p, r), (K, sigma) in touched.items():
                phase = plan.phases[p - 1].at(r)
                # The gradient of a record is -y x at w = 0, and its difference x (x . step).
                toward = (
                    (1.0 if phase.question.kind == DifferenceQuestion.kind else -1.0) * across / np.linalg.norm(across)
                )
                question = RoundQuestion(
                    run, p, r, asked_about.get(phase.question.kind, asked_about["gradient"]), b"q" * 32
                )
                message = silo.answer(question, phase).payload @ toward
                score += phase.schedule.answers * message * 2 * phase.question.clip / K / sigma**2
            found.append(score)
    high, low = (np.sort(found) for found in scores)
    mu = (high.mean() - low.mean()) / math.sqrt((high.var() + low.var()) / 2)
    mu_squared = 0.0
    for (p, r), (K, sigma) in touched.items():
        phase = plan.phases[p - 1].at(r)
        mu_squared += phase.schedule.answers * (2 * phase.question.clip / (K * sigma)) ** 2
    assert mu == pytest.approx(math.sqrt(mu_squared), abs=6 * math.sqrt(2 / runs))
    assert 0.2 * epsilon < epsilon_of_scores(high, low, delta) <= epsilon
