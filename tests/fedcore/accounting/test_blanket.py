"""A report among clones: against sums of binomials, against simulation, and against closed forms."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from fedcore.accounting.blanket import WIDEST, Lean, blanket_curve, expected_excess, gaussian_lean
from fedcore.accounting.published.shuffled import amplified, farthest
from tests.gaussian_curve import delta_by_hand


def coin_lean(local):
    """Randomised response of epsilon `local`: P and Q give 0 or 1 with odds e^local, so a is +-tanh(local / 2)."""
    at = math.tanh(local / 2)

    def cells(edges):
        mass, integral = np.zeros(len(edges) - 1), np.zeros(len(edges) - 1)
        for a in (-at, at):
            inside = np.searchsorted(edges, a * (1 + 1e-12 * math.copysign(1, a))) - 1
            mass[inside] += 0.5
            integral[inside] += 0.5 * a
        return mass, integral

    return Lean(cells, at * (1 + 1e-9), 0.0, at)


def coin_delta_among_clones(local, messages, share):
    """The same divergence by counting ones: m reports, of which all but one are fair coins."""
    p = math.exp(local) / (1 + math.exp(local))
    m, ones = np.arange(1, messages + 1)[:, None], np.arange(messages + 1)[None, :]
    weight = binom.pmf(m - 1, messages - 1, share)
    fair = binom.pmf(ones, m - 1, 0.5), binom.pmf(ones - 1, m - 1, 0.5)
    first, second = p * fair[0] + (1 - p) * fair[1], (1 - p) * fair[0] + p * fair[1]
    return lambda epsilon: float(np.sum(weight * np.maximum(first - math.exp(epsilon) * second, 0)))


def coin_delta_of_a_real_batch(local, messages, epsilon):
    """Randomised response of one user against its other answer, while all others have 0: the server counts ones."""
    p = math.exp(local) / (1 + math.exp(local))
    ones = np.arange(messages + 1)
    others = binom.pmf(ones, messages - 1, 1 - p), np.append(0.0, binom.pmf(ones[:-1], messages - 1, 1 - p))
    first, second = p * others[0] + (1 - p) * others[1], (1 - p) * others[0] + p * others[1]
    scale = math.exp(epsilon)
    return max(np.maximum(first - scale * second, 0).sum(), np.maximum(second - scale * first, 0).sum())


def least_epsilon(delta_of, delta):
    low, high = 0.0, 20.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0, WIDEST])
def test_alone_it_is_the_gaussian_mechanism(mu):
    epsilons = mu * np.array([0.0, 0.5, 2.0, 5.0])
    curve = blanket_curve(gaussian_lean(mu), 1, 0.5, 1e-12)
    for epsilon, found in zip(epsilons, curve(epsilons), strict=True):
        wanted = delta_by_hand(mu, epsilon)
        assert wanted * (1 - 1e-9) <= found <= wanted * (1.02 if epsilon <= 2 * mu else 1.06)
    # Chords between nodes are above; the other half of the curve follows from the symmetry of the pair.
    below = curve(-epsilons[1:])
    wanted = [1 - math.exp(-epsilon) * (1 - delta_by_hand(mu, epsilon)) for epsilon in epsilons[1:]]
    np.testing.assert_allclose(below, wanted, rtol=0.03)


@pytest.mark.parametrize("local, messages, share", [(1.0, 40, 0.5), (0.2, 300, 0.9), (2.0, 25, 0.1), (1.0, 2, 0.7)])
def test_coins_among_clones_are_what_binomials_say(local, messages, share):
    curve = blanket_curve(coin_lean(local), messages, share, 1e-10)
    exact = coin_delta_among_clones(local, messages, share)
    for epsilon in np.linspace(0.0, 0.9 * local, 7):
        assert exact(epsilon) * (1 - 1e-9) <= float(curve(np.array([epsilon]))[0])
    for delta in (1e-2, 1e-4, 1e-6):
        wanted = least_epsilon(exact, delta)
        found = least_epsilon(lambda e: float(curve(np.array([e]))[0]), delta)
        assert wanted <= found <= 1.03 * wanted + 1e-3


@pytest.mark.parametrize("local, messages, delta", [(0.5, 100, 1e-4), (1.0, 1000, 1e-6), (2.0, 2000, 1e-5)])
def test_it_dominates_shuffled_randomised_response_and_is_close(local, messages, delta):
    """The largest part of a fair coin in an answer is 2 / (1 + e^local); the paper's closed form claims far less."""
    share = 2 / (1 + math.exp(local))
    curve = blanket_curve(coin_lean(local), messages, share, delta * 1e-4)
    bound = least_epsilon(lambda e: float(curve(np.array([e]))[0]), delta)
    true = least_epsilon(lambda e: coin_delta_of_a_real_batch(local, messages, e), delta)
    assert true <= bound <= 1.35 * true
    if local <= farthest(messages, delta):
        assert bound < amplified(local, local, messages, delta)


@pytest.mark.parametrize("mu, messages, share", [(1.0, 50, 0.3), (0.3, 200, 0.05)])
def test_a_gaussian_report_among_clones_is_what_chance_says(mu, messages, share):
    rng, runs = np.random.default_rng(11), 40_000
    clones = rng.binomial(messages - 1, share, runs)
    total = np.zeros(runs)
    for place in range(1, clones.max() + 1):  # of W, mu apart
        t = rng.standard_normal(runs) + rng.choice([-0.5, 0.5], runs) * mu
        total += np.where(place <= clones, np.tanh(mu * t / 2), 0.0)
    # Under P, whose density is 1 - a: `e^loss = (1 - mean) / (1 + mean)`, `delta = E[(1 - e^(epsilon - loss))_+]`.
    mean = (total + np.tanh(mu * (rng.standard_normal(runs) - mu / 2) / 2)) / (clones + 1)
    loss = np.log1p(-mean) - np.log1p(mean)
    curve = blanket_curve(gaussian_lean(mu), messages, share, 1e-10)
    for epsilon in mu * np.array([0.0, 0.1, 0.3]):
        seen = np.maximum(-np.expm1(epsilon - loss), 0)
        found, error = float(curve(np.array([epsilon]))[0]), seen.std() / math.sqrt(runs)
        assert abs(found - seen.mean()) < 4.5 * error + 0.01 * found


def test_many_clones_are_a_gaussian_mechanism():
    """mean(a) of m reports is normal with variance Var(a) / m, and a loss is twice the mean: mu = 2 sqrt(Var(a) / m).

    Var(a) = E[tanh(mu t / 2)^2], by quadrature.
    """
    mu, messages, share = 0.5, 20_000, 0.5
    t = np.linspace(-14, 14, 200_001)
    density = (np.exp(-((t - mu / 2) ** 2) / 2) + np.exp(-((t + mu / 2) ** 2) / 2)) / 2 / math.sqrt(2 * math.pi)
    variance = float(np.sum(np.tanh(mu * t / 2) ** 2 * density) * (t[1] - t[0]))
    alone = 2 * math.sqrt(variance / (messages * share))
    curve = blanket_curve(gaussian_lean(mu), messages, share, 1e-8)
    for z in (0.0, 1.0, 2.0):
        assert float(curve(np.array([z * alone]))[0]) == pytest.approx(delta_by_hand(alone, z * alone), rel=0.02)


def test_more_messages_a_larger_share_and_a_smaller_distance_reveal_less():
    epsilons = np.linspace(0.0, 0.3, 5)

    def delta(mu=0.5, messages=100, share=0.2):
        return blanket_curve(gaussian_lean(mu), messages, share, 1e-9)(epsilons)

    assert np.all(delta(messages=150) < delta()) and np.all(delta(share=0.3) < delta())
    assert np.all(delta(mu=0.4) < delta())
    assert np.all(delta() < [delta_by_hand(0.5, epsilon) for epsilon in epsilons])


def test_the_excess_of_a_sum_is_what_a_binomial_says():
    """X is 2 with probability 0.3, else -1: after 40 of them 3 B - 40, B binomial; and far in the tail."""
    for up, count in ((0.3, 40), (0.01, 40), (1e-6, 15)):
        many = np.arange(count + 1)
        wanted = float(np.sum(np.maximum(3 * many - count, 0) * binom.pmf(many, count, up)))
        found = expected_excess(0.5, -2, np.array([1 - up, 0, 0, 0, 0, 0, up]), count)
        assert wanted * (1 - 1e-10) <= found <= wanted * (1 + 1e-6)


def test_what_rounding_would_decide_is_refused():
    for mu in (0.0, -1.0, WIDEST * 1.01, math.nan):
        with pytest.raises(ValueError, match="leans are told apart"):
            gaussian_lean(mu)
