"""The aggregated message of unequal silos, with weights and a random number of participants.

It is unbiased and has the variance of the spec (isrl-dp-fl 4, 5.1, 6.8, 6.9), by simulation through the round loop.
"""

import math

import numpy as np
import pytest

from fedcore.algorithms import Mbsgd
from fedcore.optim.averaging import Messages, mean_message
from fedcore.planning.participation import Binomial
from tests.gaussian_curve import mu_by_hand
from tests.selection import some_in_make_test

SIZES = {"ash": 40, "birch": 120, "cedar": 40, "elm": 80, "fir": 120, "oak": 80}
WEIGHTS = (2.4, 0.5, 1.2, 0.2, 0.4, 1.3)
"""c_i = p_i N."""
N, D, CLIP, EPSILON, DELTA = len(SIZES), 5, 1.5, 100.0, 1e-5
STEP = 1e-9
"""A step so short that all rounds query the same model: w moves by a millionth."""


def records():
    """Silos that differ, with records so long that many gradients are clipped."""
    rng = np.random.default_rng(11)
    found = {}
    for name, n in SIZES.items():
        X = rng.standard_normal((n, D))
        found[name] = X, X @ rng.standard_normal(D) * 0.5 + 1.5 * rng.standard_normal() + 0.3 * rng.standard_normal(n)
    return found


def gradients(X, y):
    """Gradients of the squared loss at w = 0, each clipped to norm CLIP, one after the other."""
    rows = [-label * row for row, label in zip(X, y, strict=True)]
    return np.array([g * min(1.0, CLIP / math.sqrt(sum(g * g))) for g in rows])


def expectation(law, f):
    if isinstance(law, Binomial):
        q = law.binomial
        chances = {m: math.comb(N, m) * q**m * (1 - q) ** (N - m) for m in range(1, N + 1)}
    else:
        chances = {m: law.count(m) for m in set(law)}
    return sum(p * f(m) for m, p in chances.items()) / sum(chances.values())


def deviations(federation, wanted):
    """|message - gradient|^2 of each round, and the mean message; the server's own step shows the same message."""
    squares, total, w = [], 0.0, np.zeros(D)
    for query, releases, state in federation.play():
        places = [list(SIZES).index(name) for name in query.participants]
        payloads = [release.payload for release in releases]
        message = mean_message(Messages(zip(places, payloads, strict=True), federation.plan.problem.weights))
        if state.phase == 1:  # at the end it is the average
            np.testing.assert_allclose((w - state.w) / STEP, message, atol=1e-5)
            w = state.w
        total = total + message
        squares.append(float(np.sum((message - wanted) ** 2)))
    return np.array(squares), total / len(squares)


MESSAGES = [((1, 2, 6), None, None), ((1, 2, 6), None, EPSILON), ((1, 2, 6), 10, None), (Binomial(0.35), 10, EPSILON)]


@pytest.mark.parametrize(("law", "batch", "epsilon"), some_in_make_test(MESSAGES, [MESSAGES[0]]), ids=str)
def test_it_is_unbiased_and_its_variance_is_the_specs(law, batch, epsilon, federate):
    data, rounds = records(), 2500
    federation = federate(
        Mbsgd(step=STEP, rounds=rounds, batch=batch),
        data,
        epsilon=epsilon,
        delta=DELTA,
        clip=CLIP,
        weights=WEIGHTS,
        participants=law,
    )
    shares = federation.plan.phases[0].by_silo
    # K_i / n_i is the same at all silos.
    rate = 1.0 if batch is None else batch / min(SIZES.values())
    assert {name: share.batch for name, share in shares.items()} == {name: rate * n for name, n in SIZES.items()}

    g = {name: gradients(*data[name]) for name in data}
    means = np.array([c * g[name].mean(0) for c, name in zip(WEIGHTS, g, strict=True)])
    wanted = means.mean(0)  # The gradient of sum p_i F_i, with p_i = c_i / N.
    # Variance of a silo's sample, with each record in by its own coin of chance q: `(1 - q) / (q n^2) |g_j|^2`.
    sampling = np.array([(1 - rate) / (rate * SIZES[name] ** 2) * np.sum(g[name] ** 2) for name in g])
    sigma = np.array([shares[name].sigma for name in g])
    own = np.mean(np.square(WEIGHTS) * (sampling + D * sigma**2))
    between = np.mean(np.sum((means - wanted) ** 2, axis=1))

    def variance(M):
        return own / M + (N - M) / ((N - 1) * M) * between

    predicted = variance(1 / expectation(law, lambda m: 1 / m))
    squares, mean = deviations(federation, wanted)
    error = np.std(squares) / math.sqrt(rounds)
    assert error < 0.06 * predicted
    assert np.mean(squares) == pytest.approx(predicted, abs=4 * error)
    assert np.sum((mean - wanted) ** 2) < 16 * predicted / rounds
    # The agreement excludes wrong formulas: the mean number in place of the harmonic one, and no weight on noise and
    # samples. Where the choice of silos dominates, it also excludes a formula without that term.
    M = 1 / expectation(law, lambda m: 1 / m)
    others = [variance(expectation(law, lambda m: m))]
    others += [] if own == 0 else [np.mean(sampling + D * sigma**2) / M + predicted - own / M]
    others += [] if epsilon is not None else [own / M]
    assert all(abs(np.mean(squares) - other) > 5 * error for other in others), (np.mean(squares), error, others)


def test_weights_scale_noise_to_that_of_the_scaled_lipschitz_constant(federate):
    """c_i sigma_i is the sigma for L_i p_i N in place of L_i (5.1, 6.8), and equal at all silos if c_i is by size."""
    total, rounds = sum(SIZES.values()), 7
    weights = tuple(N * n / total for n in SIZES.values())
    plan = federate(
        Mbsgd(rounds=rounds), records(), epsilon=EPSILON, delta=DELTA, clip=CLIP, weights=weights, approve=False
    ).plan
    mu = mu_by_hand(EPSILON, DELTA)
    scaled = []
    for c, (name, n) in zip(weights, SIZES.items(), strict=True):
        sensitivity = 2 * (c * CLIP) / n  # of c_i times the mean over n records, one of them replaced
        scaled.append(c * plan.phases[0].by_silo[name].sigma)
        # A millionth is added for rounding in sums.
        assert scaled[-1] == pytest.approx(sensitivity * math.sqrt(rounds) / mu, rel=2e-6)
    assert scaled == pytest.approx([scaled[0]] * N, rel=1e-12)


def test_noise_at_the_server_is_that_of_the_scaled_constants(federate):
    """Full batches, all silos: without noise each round has one message, so all variation is noise."""
    data, rounds = records(), 800
    method = Mbsgd(step=STEP, rounds=rounds)
    options = {"delta": DELTA, "clip": CLIP, "weights": WEIGHTS}
    still = next(federate(method, data, epsilon=None, **options).play())[1]
    noised = federate(method, data, epsilon=EPSILON, **options)
    gathered = np.array([[r.payload for r in releases] for _, releases, _ in noised.play()])
    noise = np.array(WEIGHTS)[:, None] * (gathered - np.array([release.payload for release in still]))
    mu = mu_by_hand(EPSILON, DELTA)
    wanted = np.array([2 * c * CLIP / n * math.sqrt(rounds) / mu for c, n in zip(WEIGHTS, SIZES.values(), strict=True)])
    found = np.sqrt(np.mean(noise**2, axis=(0, 2)))
    np.testing.assert_allclose(found, wanted, rtol=4 / math.sqrt(2 * rounds * D))
    aggregate = noise.mean(axis=1)
    assert np.mean(aggregate**2) == pytest.approx(np.mean(wanted**2) / N, rel=4 * math.sqrt(2 / (rounds * D)))
