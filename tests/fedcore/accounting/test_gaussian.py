"""The Gaussian privacy curve and composition against high precision, a second accountant and a loop over positions."""

import math

import mpmath
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant
from hypothesis import example, given
from hypothesis import strategies as st

from fedcore.accounting.composition import spent, worst_mu_squared
from fedcore.accounting.events import GaussianRelease, mean_sensitivity
from fedcore.accounting.gaussian import delta_of, epsilon_of, log_delta, mu_of
from fedcore.directed_rounding import shown_up

EPSILONS = [1e-6, 1e-3, 0.1, 1.0, 10.0, 100.0, 3000.0]
DELTAS = [1e-12, 1e-9, 1e-5, 1e-3]
REPLACE, ADD_OR_REMOVE = NeighboringRelation.REPLACE_ONE, NeighboringRelation.ADD_OR_REMOVE_ONE


def log_delta_exactly(mu, epsilon):
    """Balle and Wang 2018, Theorem 8, term by term with enough digits to survive the cancellation."""
    with mpmath.workdps(60):
        mu, e = mpmath.mpf(mu), mpmath.mpf(epsilon)

        def cdf(x):
            return mpmath.erfc(-x / mpmath.sqrt(2)) / 2

        return mpmath.log(cdf(mu / 2 - e / mu) - mpmath.exp(e) * cdf(-mu / 2 - e / mu))


@pytest.mark.parametrize("mu", [1e-6, 1e-3, 0.03, 0.268051, 1.0, 7.0, 40.0, 300.0])
def test_curve_agrees_with_sixty_digits(mu):
    for ratio in (0.0, 1e-3, 0.3, 1.0, 3.0, 8.0, 30.0):
        for epsilon in (ratio * mu, ratio * mu * mu):
            exact = log_delta_exactly(mu, epsilon)
            digits = 1e-12 + 2e-14 / mu  # two neighbouring terms are subtracted: small mu costs digits
            assert log_delta(mu, epsilon) == pytest.approx(float(exact), abs=digits, rel=1e-12)


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_mu_is_the_largest_that_is_private(epsilon, delta):
    mu = mu_of(epsilon, delta)
    slack = 1e-14 / mu + 1e-15 * abs(math.log(delta))  # resolution of double precision
    assert log_delta_exactly(mu, epsilon) <= math.log(delta) + slack
    assert log_delta_exactly(mu * (1 + 1e-8), epsilon) > math.log(delta)


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("mu", [1e-3, 0.05, 0.5, 3.0, 50.0])
def test_epsilon_is_the_smallest_that_is_private(mu, delta):
    epsilon = epsilon_of(mu, delta)
    if epsilon == 0:
        assert log_delta_exactly(mu, 0) <= math.log(delta)
    else:
        assert log_delta_exactly(mu, epsilon * (1 + 1e-9)) <= math.log(delta)
        assert log_delta_exactly(mu, epsilon * (1 - 1e-9)) > math.log(delta)


@pytest.mark.parametrize("delta", [1e-250, 1e-12, 1e-5, 0.9])
@pytest.mark.parametrize("mu", [1e6, 1.001e6, 1e8, 1e10])
def test_hardly_any_noise_has_a_large_epsilon(mu, delta):
    epsilon = epsilon_of(mu, delta)
    assert log_delta_exactly(mu, epsilon * (1 + 1e-9)) <= math.log(delta)
    assert log_delta_exactly(mu, epsilon * (1 - 1e-4)) > math.log(delta)


def test_epsilon_rises_to_infinity_with_mu():
    epsilons = [epsilon_of(10.0 ** (power / 4), 1e-5) for power in range(1200)]
    assert epsilons == sorted(epsilons) and epsilons[0] > 0 and epsilons[-1] == math.inf


@given(st.floats(-5, 3.5), st.floats(-14, -2))
@example(-4.0, -4.0)
def test_round_trip_returns_the_target_and_not_more(log_epsilon, log_d):
    epsilon, delta = 10**log_epsilon, 10**log_d
    mu = mu_of(epsilon, delta)
    back = epsilon_of(mu, delta)
    assert back == pytest.approx(epsilon, rel=1e-9)
    # A relative error r of an exponential or a Mills ratio moves epsilon by `r (1 + delta / (e^epsilon Phi(-s)))`. That
    # is absolute, not in proportion: two searches at a few times 2.2e-16. Sensitivities have 1e-6 to spare.
    assert back <= epsilon * (1 + 1e-12) + 4e-15


@pytest.mark.parametrize("epsilon", [0.005, 0.01, 0.1, 0.3, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0, 20.0, 300.0, 1e4])
def test_noise_of_many_answers_that_was_found_for_a_target_is_shown_to_spend_just_that(epsilon):
    """A target of 2 is shown as 2 without a tolerance: the found epsilon is below it by more than rounding."""
    for delta in (1e-100, 1e-12, 1e-9, 1e-6, 1e-5, 1e-3, 1 / 51**2, 1 / 303**2, 1 / 902**2, 1 / 13_000**2):
        for answers in (1, 3, 7, 40, 999):
            sensitivity = 2 * (1 + 1e-6) / 902
            sigma = sensitivity * math.sqrt(answers) / mu_of(epsilon, delta)
            back = epsilon_of(math.sqrt(math.fsum([(sensitivity / sigma) ** 2] * answers)), delta)
            assert epsilon * (1 - 1e-9) < back <= epsilon
            assert float(shown_up(back, 9)) == epsilon


mus, epsilons, log_deltas = st.floats(1e-3, 50), st.floats(0, 30), st.floats(-12, -3)


@given(mus, mus, epsilons, epsilons, log_deltas, log_deltas)
def test_monotone_in_every_argument(mu_a, mu_b, e_a, e_b, d_a, d_b):
    (mu_a, mu_b), (e_a, e_b), (d_a, d_b) = sorted((mu_a, mu_b)), sorted((e_a, e_b)), sorted((10**d_a, 10**d_b))
    slack = 1 + 1e-9
    assert delta_of(mu_a, e_a) <= delta_of(mu_b, e_a) * slack
    assert delta_of(mu_a, e_b) <= delta_of(mu_a, e_a) * slack
    assert epsilon_of(mu_a, d_a) <= epsilon_of(mu_b, d_a) * slack
    assert epsilon_of(mu_a, d_b) <= epsilon_of(mu_a, d_a) * slack
    if e_a > 1e-3:
        assert mu_of(e_a, d_a) <= mu_of(e_b, d_a) * slack
        assert mu_of(e_a, d_a) <= mu_of(e_a, d_b) * slack


def test_values_of_the_spec():
    assert mu_of(1, 1e-5) == pytest.approx(0.268051, abs=5e-7)
    assert mu_of(2, 1e-5) == pytest.approx(0.501552, abs=5e-7)


def test_ends_of_the_range():
    assert epsilon_of(0.0, 1e-5) == 0.0
    assert epsilon_of(math.inf, 1e-5) == math.inf
    assert delta_of(math.inf, 3.0) == 1.0 and delta_of(0.0, 0.0) == 0.0
    for wrong in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="must be a positive number"):
            mu_of(wrong, 1e-5)
    for wrong in (-1.0, math.nan):
        with pytest.raises(ValueError, match="must be >= 0"):
            epsilon_of(wrong, 1e-5)
    for inverse in (mu_of, epsilon_of):
        for wrong in (0.0, 1.0, -0.1, math.nan):
            with pytest.raises(ValueError, match="strictly between 0 and 1"):
                inverse(1.0, wrong)


# A second accountant


def by_library(accountant, multiplier, rounds, delta):
    return accountant.compose(GaussianDpEvent(multiplier), rounds).get_epsilon(delta)


def ours(clip, batch, sigma, rounds, delta):
    return spent([GaussianRelease(0, batch, mean_sensitivity(clip, batch), sigma, count=rounds)], delta)


def test_agrees_with_a_privacy_loss_distribution_and_pins_the_trap_of_its_units():
    """The library's PLD accountant doubles the sensitivity under replace-one; its RDP accountant does not."""
    clip, K, sigma, rounds, delta = 1.5, 40, 0.9, 30, 1e-5
    found = ours(clip, K, sigma, rounds, delta)
    per_record, replacement = sigma * K / clip, sigma * K / (2 * clip)
    assert by_library(PLDAccountant(REPLACE), per_record, rounds, delta) == pytest.approx(found, rel=2e-3)
    assert by_library(PLDAccountant(ADD_OR_REMOVE), replacement, rounds, delta) == pytest.approx(found, rel=2e-3)
    assert by_library(PLDAccountant(REPLACE), replacement, rounds, delta) > 1.8 * found  # twice the noise for nothing
    assert by_library(PLDAccountant(ADD_OR_REMOVE), per_record, rounds, delta) < 0.6 * found  # half the noise needed
    by_renyi = by_library(RdpAccountant(neighboring_relation=REPLACE), replacement, rounds, delta)
    assert found < by_renyi < 1.2 * found


@pytest.mark.parametrize("sigma, rounds", [(3.0, 1), (0.7, 12), (0.4, 100)])
def test_is_never_below_a_lower_estimate_of_the_library(sigma, rounds):
    optimistic = PLDAccountant(ADD_OR_REMOVE, value_discretization_interval=1e-3)
    library = by_library(optimistic, sigma * 10 / 2.0, rounds, 1e-6)
    assert ours(1.0, 10, sigma, rounds, 1e-6) == pytest.approx(library, rel=5e-3)
    assert ours(1.0, 10, sigma, rounds, 1e-6) >= library * (1 - 3e-3)


# Composition


release = st.builds(
    lambda start, length, s, sigma, count: GaussianRelease(start, start + length, s, sigma, count),
    st.integers(0, 12),
    st.integers(1, 9),
    st.floats(1e-3, 10),
    st.floats(1e-2, 10),
    st.integers(1, 4),
)


@given(st.lists(release, min_size=1, max_size=9))
def test_cost_is_that_of_the_worst_position(events):
    by_position = np.zeros(30)
    for e in events:
        for position in range(e.start, e.stop):
            by_position[position] += e.count * e.sensitivity**2 / e.sigma**2
    assert worst_mu_squared(events) == pytest.approx(by_position.max(), rel=1e-12)
    assert spent(events, 1e-6) == pytest.approx(epsilon_of(math.sqrt(by_position.max()), 1e-6), rel=1e-9)


def test_pieces_compose_in_parallel_and_rounds_in_sequence():
    left, right = GaussianRelease(0, 5, 1.0, 2.0), GaussianRelease(5, 9, 1.0, 4.0)
    assert worst_mu_squared([]) == 0.0 and spent([], 1e-5) == 0.0
    assert worst_mu_squared([left, right]) == 0.25
    assert worst_mu_squared([left, right, GaussianRelease(4, 6, 3.0, 3.0)]) == 1.25
    assert worst_mu_squared([left] * 3) == 0.75
    many = [GaussianRelease(i, i + 1, 1.0, 3.0) for i in range(2000)]
    assert worst_mu_squared(many) == (1 / 3.0) ** 2  # no drift from adding and taking away


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan])
def test_without_noise_there_is_no_guarantee(sigma):
    events = [GaussianRelease(0, 5, 1.0, 2.0), GaussianRelease(7, 9, 1.0, sigma)]
    assert worst_mu_squared(events) == math.inf and spent(events, 1e-5) == math.inf


@pytest.mark.parametrize(
    "event",
    [
        GaussianRelease(0, 5, 1.0, 1.0, mechanism="laplace"),
        GaussianRelease(0, 5, 1.0, 1.0, adjacency="add-or-remove-one"),
        GaussianRelease(0, 5, 1.0, 1.0, sampling="shuffled"),
        GaussianRelease(0, 5, 1.0, 1.0, rate=0.5),
        GaussianRelease(5, 5, 1.0, 1.0),
        GaussianRelease(5, 4, 1.0, 1.0),
    ],
    ids=str,
)
def test_an_event_that_the_accountant_does_not_know_is_refused(event):
    with pytest.raises(ValueError, match="no sound accountant"):
        worst_mu_squared([GaussianRelease(0, 5, 1.0, 1.0), event])
    with pytest.raises(ValueError, match="no sound accountant"):
        spent([GaussianRelease(0, 5, 1.0, 1.0), event], 1e-5)


@pytest.mark.parametrize(
    "event",
    [
        GaussianRelease(0, 5, math.nan, 1.0),
        GaussianRelease(0, 5, math.inf, math.inf),
        GaussianRelease(0, 5, 1.0, 1.0, count=-1),
    ],
    ids=str,
)
def test_an_event_without_a_cost_that_is_a_number_is_not_free(event):
    try:
        cost = worst_mu_squared([GaussianRelease(0, 5, 1.0, 2.0), event])
    except ValueError:
        return
    assert cost == math.inf


def test_sensitivity_of_a_mean_is_that_of_a_replacement():
    assert mean_sensitivity(3.0, 12) == pytest.approx(0.5, rel=2e-6)
    assert mean_sensitivity(3.0, 12) > 0.5
