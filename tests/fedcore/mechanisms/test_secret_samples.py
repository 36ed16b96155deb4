"""Secret samples at a silo: participation of records, the moments of new draws, and the mean of the message."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from fedcore.algorithms import LocalizedMbsgd, Mbsgd, OnePassMbsgd
from fedcore.data.records import Records
from fedcore.errors import InputError
from fedcore.ledger.memory import MemoryLedger
from fedcore.losses import DrawnConvolution, Hinge, Squared
from fedcore.mechanisms.secret_sample import fixed_size_sample, poisson_sample, sample_stream
from fedcore.messages import Query
from fedcore.silo.keys import SecretKeys
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.question import RoundQuestion
from tests.epsilon_shown import epsilon_of_scores

N, K, ROUNDS = 24, 9, 600


def ask(federation, round, w, phase=1):
    query = Query("run", federation.plan.digest, phase, round, ("a",), {"w": w})
    return federation.ask(query)[0].payload


def identity(federate, rounds=ROUNDS, label=1e6, batch=K, secret=b"key", **changes):
    """A silo of unit vectors, whose messages without noise show who took part: +-1/K at the record's coordinate."""
    data = {"a": (np.eye(N), np.full(N, float(label)))}
    keys = SecretKeys(secret)
    return federate(Mbsgd(rounds=rounds, batch=batch), data, epsilon=None, key=lambda name: keys, **changes)


def seen(federation, rounds=ROUNDS, w=None):
    """(rounds, N) of who took part in each round, at the same query point."""
    w = np.zeros(N) if w is None else w
    expected = federation.plan.phases[0].batch
    messages = np.array([ask(federation, r + 1, w) for r in range(rounds)]) * expected
    assert set(np.round(np.abs(messages), 9).ravel()) <= {0.0, 1.0}
    return np.abs(messages) > 0.5


# Who takes part


def test_the_size_of_a_sample_is_binomial_and_records_are_independent(federate):
    took_part = seen(identity(federate))
    q = K / N
    sizes = np.bincount(took_part.sum(1), minlength=N + 1)
    expected = ROUNDS * stats.binom.pmf(np.arange(N + 1), N, q)
    inner = expected >= 5
    low, high = np.flatnonzero(inner)[[0, -1]]
    observed = np.concatenate(([sizes[:low].sum()], sizes[low : high + 1], [sizes[high + 1 :].sum()]))
    wanted = np.concatenate(([expected[:low].sum()], expected[low : high + 1], [expected[high + 1 :].sum()]))
    assert stats.chisquare(observed, wanted).pvalue > 1e-3
    # Each record by its own coin: frequencies are binomial, correlations those of independent columns.
    assert (np.abs(took_part.mean(0) - q) < 5 * math.sqrt(q * (1 - q) / ROUNDS)).all()
    correlation = np.corrcoef(took_part.T.astype(float)) - np.eye(N)
    assert np.abs(correlation).max() < 5 / math.sqrt(ROUNDS)
    # Over rounds: participation in one round is independent of the next.
    following = np.mean(took_part[1:] & took_part[:-1])
    assert following == pytest.approx(q * q, abs=5 * q / math.sqrt(ROUNDS * N))


def test_a_sample_is_that_of_its_question_and_not_of_the_records(federate):
    federation = identity(federate, rounds=40)
    first = seen(federation, 40)
    assert len({row.tobytes() for row in first}) > 30  # drawn anew in each round
    assert (seen(federation, 40) == first).all()  # the ledger holds the newest answer only: most are drawn again
    other_labels = seen(identity(federate, rounds=40, label=-3.0), 40)
    assert (other_labels == first).all()
    elsewhere = seen(identity(federate, rounds=40), 40, np.full(N, 1e-3))
    assert 0.4 < (elsewhere != first).mean() / (2 * K / N * (1 - K / N)) < 1.6  # another model: another sample
    assert (seen(identity(federate, rounds=40, secret=b"other"), 40) != first).mean() > 0.3
    assert (seen(identity(federate, rounds=41), 40) != first).mean() > 0.3  # another plan


def test_an_answer_that_is_asked_again_after_a_crash_has_the_same_bits(federate, toy):
    method = Mbsgd(rounds=6, batch=5)
    whole = federate(method, toy)
    for query, releases, _ in whole.play():
        fresh = federate(method, toy)  # nothing was committed here: the sample and the noise are drawn again
        assert [r.payload.tobytes() for r in fresh.ask(query)] == [r.payload.tobytes() for r in releases]


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(ValueError, match="rate"):
        poisson_sample(sample_stream(b"k" * 32, b"context"), rate, 5)


def test_extreme_rates_are_drawn():
    stream = sample_stream(b"k" * 32, b"c")
    assert len(poisson_sample(stream, 1e-30, 1000)) == 0
    assert len(poisson_sample(stream, 1 - 2**-53, 1000)) == 1000
    chosen = poisson_sample(stream, 0.5, 1000)
    assert (np.diff(chosen) > 0).all() and 400 < len(chosen) < 600


def test_samples_of_a_fixed_size_are_uniform_and_independent_from_answer_to_answer():
    """All ten pairs of five places, and all hundred pairs of consecutive samples, against equal frequencies."""
    stream, pairs = sample_stream(b"k" * 32, b"c"), list(itertools.combinations(range(5), 2))
    found = np.array([pairs.index(tuple(fixed_size_sample(stream, 2, 5).tolist())) for _ in range(40_000)])
    assert stats.chisquare(np.bincount(found, minlength=10)).pvalue > 1e-4
    assert stats.chisquare(np.bincount(10 * found[::2] + found[1::2], minlength=100)).pvalue > 1e-4


class Given:
    """A stream of given words of 32 bits, two in one of 64 bits, the first of them in its low half."""

    def __init__(self, *draws):
        self.draws = [np.array(draw, dtype="<u4").view("<u8") for draw in draws]

    def words(self, n):
        assert n == len(self.draws[0])
        return self.draws.pop(0)


def test_words_that_are_equal_where_a_choice_ends_are_drawn_anew():
    stream = Given([7, 5, 3, 5, 9, 0], [5, 5, 3, 8, 9, 0], [2, 1, 4, 4, 3, 0])
    assert fixed_size_sample(stream, 2, 5).tolist() == [0, 1]  # the sixth word is none of five records'
    assert not stream.draws
    assert fixed_size_sample(Given([5, 5, 3, 8, 9, 0]), 3, 5).tolist() == [0, 1, 2]
    assert fixed_size_sample(Given([1, 1, 1, 1]), 4, 4).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("size", [0, 6])
def test_a_sample_of_more_records_than_there_are_is_refused(size):
    with pytest.raises(ValueError, match=f"a sample of {size} of 5"):
        fixed_size_sample(sample_stream(b"k" * 32, b"c"), size, 5)


# The message


def test_messages_are_unbiased_with_the_covariance_of_coins(federate):
    """Mean over rounds against the full clipped mean; covariance q (1 - q) / K^2 sum of g g^T, in closed form."""
    n, d, K, rounds, clip = 30, 3, 6, 2000, 0.8
    rng = np.random.default_rng(2)
    X, y, w = rng.standard_normal((n, d)), rng.standard_normal(n), np.array([0.3, -0.4, 0.1])
    federation = federate(Mbsgd(rounds=rounds, batch=K), {"a": (X, y)}, epsilon=None, clip=clip)
    messages = np.array([ask(federation, r + 1, w) for r in range(rounds)])
    g = (X @ w - y)[:, None] * X
    g *= np.minimum(1.0, clip / np.linalg.norm(g, axis=1))[:, None]
    q = K / n
    covariance = q * (1 - q) / K**2 * g.T @ g
    off = messages.mean(0) - g.mean(0)
    assert stats.chi2.sf(off @ np.linalg.solve(covariance / rounds, off), d) > 1e-3
    # The spread too: dividing by the realised size instead would shrink it.
    whitened = np.linalg.solve(np.linalg.cholesky(covariance), (messages - g.mean(0)).T)
    np.testing.assert_allclose(whitened @ whitened.T / rounds, np.eye(d), atol=0.2)


def test_an_empty_sample_answers_pure_noise(federate):
    """K = 1 of 24: a third of the samples are empty, and the division is by 1 all the same."""
    noisy = identity(federate, rounds=60, batch=1)
    empty = ~seen(noisy, 60).any(1)
    assert 10 <= empty.sum() <= 36
    private = federate(Mbsgd(rounds=60, batch=1), {"a": (np.zeros((N, 2000)), np.ones(N))}, epsilon=3.0)
    sigma = private.plan.phases[0].sigma
    residuals = np.array([ask(private, r + 1, np.zeros(2000)) for r in range(60)]) / sigma
    low, high = stats.chi2.ppf([1e-4, 1 - 1e-4], residuals.size)
    assert low < (residuals**2).sum() < high


def test_unequal_silos_have_one_rate_and_divide_by_their_own_expected_count(federate, toy):
    """16, 21 and 19 records, K = 5: 5, 6.5625 and 5.9375 are expected."""
    plan = federate(Mbsgd(rounds=4, batch=5), toy).plan
    assert {s.silo: (s.rate, s.batch) for s in plan.phases[0].shares} == {
        "ash": (0.3125, 5),
        "birch": (0.3125, 6.5625),
        "cedar": (0.3125, 5.9375),
    }
    X, y = np.eye(21), np.full(21, 1e6)
    data = {"ash": (np.zeros((16, 21)), np.zeros(16)), "a": (X, y)}
    federation = federate(Mbsgd(rounds=4, batch=5), data, epsilon=None)
    message = ask(federation, 1, np.zeros(21))
    assert set(np.unique(np.round(message, 12))) <= {0.0, -0.0, round(-1 / 6.5625, 12)}


@pytest.mark.parametrize("batch", [16, 17, 1000])
def test_a_batch_of_all_records_is_the_full_batch(federate, toy, batch):
    """The plan is the same. The terms that silos agree to are others, and with them the order of records, and noise."""
    assert federate(Mbsgd(rounds=4), toy).plan.digest == federate(Mbsgd(rounds=4, batch=batch), toy).plan.digest
    full, all_of_them = (federate(Mbsgd(rounds=4, batch=K), toy, epsilon=None).final() for K in (None, batch))
    np.testing.assert_allclose(all_of_them, full, rtol=1e-12)


def test_a_localized_plan_samples_while_pieces_are_larger_than_the_batch(federate):
    data = {"a": (np.ones((64, 2)), np.ones(64)), "b": (np.ones((96, 2)), np.ones(96))}
    plan = federate(LocalizedMbsgd(rounds=3, batch=8), data).plan
    rates = [(phase.n, phase.rate, phase.batch) for phase in plan.phases]
    assert rates == [(32, 0.25, 8), (16, 0.5, 8), (8, 1.0, 8), (4, 1.0, 4), (2, 1.0, 2), (1, 1.0, 1)]
    assert [phase["rate"] for phase in plan.as_json()["phases"]] == [0.25, 0.5, 1.0, 1.0, 1.0, 1.0]
    assert plan.as_json()["totals"]["gradient_evaluations"] == 3 * (8 + 8 + 8 + 4 + 2 + 1 + 12 + 12 + 12 + 6 + 3 + 1)
    events = plan.silo_events("b")
    assert [(e.start, e.stop, e.sampling, e.rate) for e in events[:3]] == [
        (0, 48, "poisson", 0.25),
        (48, 72, "poisson", 0.5),
        (72, 84, "full", 1.0),
    ]


def test_one_record_moves_a_sampled_message_by_at_most_what_is_charged(federate):
    """Replacing any one record: 2 C / K with K the expected count, reached when it takes part."""
    rng, n, C = np.random.default_rng(5), 12, 0.7
    X, y = 10 * rng.standard_normal((n, 3)), np.full(n, 1e6)
    base = federate(Mbsgd(rounds=8, batch=4), {"a": (X, y)}, epsilon=None, clip=C)
    before = [ask(base, r + 1, np.zeros(3)) for r in range(8)]
    largest = 0.0
    for j in range(n):
        flipped = y.copy()
        flipped[j] = -1e6
        other = federate(Mbsgd(rounds=8, batch=4), {"a": (X, flipped)}, epsilon=None, clip=C)
        for r in range(8):
            largest = max(largest, float(np.linalg.norm(ask(other, r + 1, np.zeros(3)) - before[r])))
    assert 2 * C / 4 * (1 - 1e-9) < largest <= base.plan.phases[0].event("a", 1).sensitivity


@pytest.mark.minutes
def test_an_attack_on_the_worst_pair_stays_below_epsilon_and_learns_what_mixtures_tell(federate):
    """Likelihood ratio if all records but one are known, and no participation: q N(+C) or q N(-C), the rest N(0)."""
    n, K, rounds, runs, epsilon, delta = 8, 4, 6, 1200, 2.0, 1e-2
    method, q = Mbsgd(rounds=rounds, batch=K), K / n
    probe = federate(method, {"a": (np.ones((n, 1)), np.arange(n))}, epsilon=epsilon, delta=delta)
    plan, s = probe.plan, probe.plan.phases[0].sigma * K

    def log_ratio(v):
        return np.log1p(q * np.expm1((v - 0.5) / s**2)) - np.log1p(q * np.expm1((-v - 0.5) / s**2))

    scores = {-1e6: [], 1e6: []}  # a label far below pushes the mean gradient up
    for number in range(runs):
        run = f"run {number}"
        labels = PrivateSilo("a", Records(np.ones((n, 1)), np.arange(float(n))), SecretKeys(b"key"), MemoryLedger("a"))
        labels.approve(run, plan, method, Squared())
        first = int(labels._runs[run].y[0])
        for label, found in scores.items():
            y = np.zeros(n)
            y[first] = label
            silo = PrivateSilo("a", Records(np.ones((n, 1)), y), SecretKeys(b"key"), MemoryLedger("a"))
            silo.approve(run, plan, method, Squared())
            asked = (RoundQuestion(run, 1, r + 1, {"w": np.zeros(1)}, b"q" * 32) for r in range(rounds))
            answers = [silo.answer(question, plan.phases[0]).payload[0] * K for question in asked]
            found.append(float(log_ratio(np.array(answers)).sum()))
    grid = np.linspace(-12 * s, 12 * s, 200_001)
    density = (1 - q) * stats.norm.pdf(grid, 0, s) + q * stats.norm.pdf(grid, 1, s)
    mean = rounds * np.trapezoid(density * log_ratio(grid), grid)
    high, low = np.array(scores[-1e6]), np.array(scores[1e6])
    assert high.mean() == pytest.approx(mean, abs=5 * high.std() / math.sqrt(runs))
    assert -low.mean() == pytest.approx(mean, abs=5 * low.std() / math.sqrt(runs))
    assert 0.2 * epsilon < epsilon_of_scores(high, low, delta) <= epsilon


def test_methods_without_a_second_round_on_a_piece_have_no_batch():
    with pytest.raises(Exception, match="batch"):
        OnePassMbsgd(batch=4)
    for wrong in (0, -3, 2.5, True, "all"):
        with pytest.raises(Exception, match="batch"):
            Mbsgd(batch=wrong)
    with pytest.raises(InputError, match=r"algorithm\.batch = theory"):
        LocalizedMbsgd(batch="theory").plan(None)


# Samples of Algorithm 7


def test_drawn_points_and_samples_go_together(federate):
    """Records e_j at the kink: a message shows who took part with a point on the steep side, half of them."""
    loss = DrawnConvolution(Hinge(), 3.0, 1.0, N)
    data = {"a": (np.eye(N), np.ones(N))}
    w = np.full(N, 1.0)  # at the kink: half of the draws lie on each side
    federation = federate(Mbsgd(rounds=200, batch=K), data, epsilon=None, loss=loss)
    messages = np.array([ask(federation, r + 1, w) for r in range(200)]) * K
    assert set(np.round(messages, 9).ravel()) <= {0.0, -0.0, -1.0}
    half = (messages < -0.5).mean()
    assert half == pytest.approx(K / N / 2, abs=5 * math.sqrt(half / (200 * N)))
    assert len({row.tobytes() for row in messages}) > 190
    full = federate(Mbsgd(rounds=200), data, epsilon=None, loss=loss)
    steep = np.array([ask(full, r + 1, w) for r in range(200)]) * N < -0.5
    assert steep.mean() == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(200 * N))
    assert len({row.tobytes() for row in steep}) > 190  # drawn anew in each round
    again = federate(Mbsgd(rounds=200), data, epsilon=None, loss=loss)
    assert (np.array([ask(again, r + 1, w) for r in range(200)]) * N < -0.5).tolist() == steep.tolist()
