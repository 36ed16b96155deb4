"""Shuffled Gaussian answers: never below an attack's epsilon; limits, plans and the spec's numbers."""

import itertools
import math

import numpy as np
import pytest

from fedcore.accounting.blanket import blanket_curve, gaussian_lean
from fedcore.accounting.composition import spent
from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.gaussian import delta_of
from fedcore.accounting.shuffling import shuffled_epsilon, shuffled_multiplier
from tests.gaussian_curve import epsilon_by_hand, mu_by_hand
from tests.selection import some_in_make_test


def attacked_delta(epsilon, losses):
    """A lower bound on delta at `epsilon` from log-likelihood ratios (k,) of batches in the first world.

    The likelihood-ratio test has delta = E[(1 - e^(epsilon - loss))_+], here less five standard errors.
    """
    seen = np.maximum(-np.expm1(epsilon - losses), 0.0)
    return float(seen.mean() - 5 * seen.std() / math.sqrt(len(seen)))


def losses_of(pair, others, rounds, runs, seed):
    """Exact log-likelihood ratios (runs,) of shuffled batches, for two means `pair` of the target, in the first world.

    `others` (M - 1, dim). Noise 1. A batch's likelihood is a sum over the M! orders of its messages; where all others
    are alike, at the origin, over the target's places.
    """
    rng, means = np.random.default_rng(seed), np.vstack([pair[:1], others])
    total = np.zeros(runs)
    for _ in range(rounds):
        seen = means + rng.standard_normal((runs, *means.shape))
        if not np.any(others):
            densities = [seen @ mean - mean @ mean / 2 for mean in pair]
        else:
            logs = [-0.5 * np.sum((seen[:, :, None] - np.vstack([mean, others])) ** 2, -1) for mean in pair]
            orders = np.array(list(itertools.permutations(range(len(means)))))
            densities = [log[:, orders, np.arange(len(means))].sum(-1) for log in logs]
        first, second = (np.logaddexp.reduce(density, axis=1) for density in densities)
        total += first - second
    return total


def opposite(multiplier, records, messages):
    """The worst position of the others for the target's tail: all as far from it as whole data sets can be."""
    step, whole = 1 / multiplier, records / multiplier
    return np.array([[whole], [whole - step]]), np.zeros((messages - 1, 1))


ATTACKS = {
    "few messages": (*opposite(1.0, 1, 5), 1.0, 1, 1),
    "many messages": (*opposite(1.5, 1, 60), 1.5, 1, 1),
    "two records": (*opposite(2.0, 2, 40), 2.0, 2, 1),
    "far records": (*opposite(3.0, 6, 40), 3.0, 6, 1),
    "three rounds": (*opposite(2.0, 1, 30), 2.0, 1, 3),
    "many rounds": (*opposite(8.0, 1, 30), 8.0, 1, 40),
    # Others at both ends and beside, in the plane; the target's means lie 1/1.2 apart around the middle.
    "all around": (
        np.array([[-0.41, 0.0], [0.41, 0.0]]),
        np.array([[0.41, 0.6], [-0.41, -0.6], [0.8, 0.0]]),
        1.2,
        1,
        2,
    ),
}


@pytest.mark.parametrize("name", some_in_make_test(ATTACKS, [name for name in ATTACKS if name != "many rounds"]))
def test_no_attack_shows_more_than_is_claimed(name):
    """The likelihood-ratio test of an adversary who knows all other records, against the claim at several deltas."""
    pair, others, multiplier, records, rounds = ATTACKS[name]
    losses = losses_of(pair, others, rounds, 20_000, 5)
    for delta in (0.1, 0.03, 0.01, 0.003):
        assert attacked_delta(shuffled_epsilon(multiplier, records, rounds, len(others) + 1, delta), losses) <= delta


@pytest.mark.minutes
def test_where_others_are_near_the_attack_shows_half_of_what_is_claimed():
    """The attack would detect a claim that is much too low."""
    pair, others, multiplier, records, rounds = ATTACKS["many rounds"]
    claimed = shuffled_epsilon(multiplier, records, rounds, len(others) + 1, 0.003)
    assert claimed < epsilon_by_hand(math.sqrt(rounds) / multiplier, 0.003) / 3
    assert attacked_delta(claimed / 2, losses_of(pair, others, rounds, 20_000, 6)) > 0.003


def test_an_attack_shows_where_others_may_lie():
    """Without a charge for the others' distance the claim is false, and this attack detects it."""
    pair, others, multiplier, _, rounds = ATTACKS["far records"]
    as_if_alike = blanket_curve(gaussian_lean(1 / multiplier), len(others) + 1, 1.0, 1e-6)
    epsilon = 0.1
    shown = attacked_delta(epsilon, losses_of(pair, others, rounds, 60_000, 5))
    assert shown > 1.5 * float(as_if_alike(np.array([epsilon]))[0])


@pytest.mark.parametrize("angle", [0.0, 0.7, math.pi / 2, math.pi])
def test_others_lack_no_more_of_the_blanket_than_is_charged(angle):
    """The integral of (share W - R)_+ on a fine grid of the plane, R's mean at most `whole` from both of the pair's."""
    mu, whole, share = 0.4, 1.2, 0.15
    x = np.arange(-8, 8, 0.02)
    X, Y = np.meshgrid(x, x)

    def density(mean):
        return np.exp(-((X - mean[0]) ** 2 + (Y - mean[1]) ** 2) / 2) / (2 * math.pi)

    pair = [(-mu / 2, 0.0), (mu / 2, 0.0)]
    far = max(r for r in np.arange(0, whole, 1e-3) if max(_distance(r, angle, mean) for mean in pair) <= whole)
    other = density((far * math.cos(angle), far * math.sin(angle)))
    lacking = np.sum(np.maximum(share * (density(pair[0]) + density(pair[1])) / 2 - other, 0)) * 0.02**2
    charged = share * delta_of(whole, -math.log(share))
    assert 0 < lacking <= charged * (1 + 1e-3)


def _distance(radius, angle, mean):
    return math.hypot(radius * math.cos(angle) - mean[0], radius * math.sin(angle) - mean[1])


def test_without_others_or_with_far_ones_it_is_the_local_epsilon():
    for records, messages in ((10, 1), (1000, 50), (10**6, 10**4)):
        assert shuffled_epsilon(20.0, records, 30, messages, 1e-6) == pytest.approx(
            epsilon_by_hand(math.sqrt(30) / 20, 1e-6), rel=1e-9
        )
        assert shuffled_multiplier(records, 30, messages, 1.0, 1e-6) == pytest.approx(
            math.sqrt(30) / mu_by_hand(1.0, 1e-6), rel=1e-6
        )
    # With a delta below what the counted masses miss, nothing is claimed either.
    assert shuffled_epsilon(5.0, 1, 10, 1000, 1e-40) == pytest.approx(
        spent([GaussianRelease(0, 1, 1.0, 5.0, 10)], 1e-40), rel=1e-9
    )


def test_more_noise_messages_and_delta_fewer_rounds_and_records_cost_less():
    def epsilon(multiplier=6.0, records=2, rounds=20, messages=500, delta=1e-6):
        return shuffled_epsilon(multiplier, records, rounds, messages, delta)

    base, local = epsilon(), epsilon_by_hand(math.sqrt(20) / 6, 1e-6)
    assert base < local / 3
    for changed in ({"multiplier": 8.0}, {"records": 1}, {"rounds": 10}, {"messages": 1000}, {"delta": 1e-5}):
        assert epsilon(**changed) < base, changed
    assert epsilon(multiplier=1e4) < 1e-3
    assert epsilon(multiplier=0.4) == pytest.approx(epsilon_by_hand(math.sqrt(20) / 0.4, 1e-6), rel=1e-9)


def test_many_messages_and_rounds_are_a_gaussian_mechanism():
    """With hardly any distance to the others mu = sqrt(R / M) / multiplier, but for tanh and delta's share."""
    multiplier, rounds, messages, delta = 60.0, 400, 2000, 1e-5
    alone = math.sqrt(rounds / messages) / multiplier
    wanted = epsilon_by_hand(alone, delta)
    found = shuffled_epsilon(multiplier, 1, rounds, messages, delta)
    assert wanted < found < 1.15 * wanted


TARGETS = [(1, 100, 1000, 1.0, 1e-6), (10, 100, 1000, 1.0, 1e-6), (10, 100, 25, 1.0, 1e-6), (2, 1, 300, 0.2, 1e-7)]


@pytest.mark.parametrize("records, rounds, messages, epsilon, delta", some_in_make_test(TARGETS, TARGETS[2:]))
def test_calibrated_noise_meets_the_target_and_not_by_much(records, rounds, messages, epsilon, delta):
    found = shuffled_multiplier(records, rounds, messages, epsilon, delta)
    assert shuffled_epsilon(found, records, rounds, messages, delta, epsilon) <= epsilon
    assert shuffled_epsilon(0.99 * found, records, rounds, messages, delta) > epsilon
    assert found < math.sqrt(rounds) / mu_by_hand(epsilon, delta) / 1.4
    # Rounded to 20 bits, so that all who search for it have the same.
    assert math.ldexp(found, 20 - math.frexp(found)[1]) % 1 == 0


def test_the_spec_s_example_needs_far_less_noise_than_locally():
    """At `n = 10, N = M = 1000, R = 100, epsilon 1, delta 1e-6` full batches need sigma = 8.45 L locally, here a third.

    The spec's closed form requires sqrt(33 778) = 184 L, for one record of ten.
    """
    local = 2 / 10 * math.sqrt(100) / mu_by_hand(1.0, 1e-6)
    assert local == pytest.approx(8.45, abs=0.01)
    assert 2 / 10 * shuffled_multiplier(10, 100, 1000, 1.0, 1e-6) < local / 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"multiplier": 0.0},
        {"multiplier": math.nan},
        {"records": 0},
        {"rounds": 0},
        {"messages": 0},
        {"delta": 0.0},
        {"delta": 1.0},
    ],
)
def test_nonsense_is_refused(wrong):
    given = {"multiplier": 3.0, "records": 2, "rounds": 4, "messages": 9, "delta": 1e-3}
    with pytest.raises(ValueError):
        shuffled_epsilon(**(given | wrong))
