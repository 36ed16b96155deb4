"""Costs of answers when all records of a silo are replaced, against closed forms and exact sums over sample sizes."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import fftconvolve
from scipy.special import ndtr
from scipy.stats import binom

from fedcore.accounting.composition import spent
from fedcore.accounting.events import GaussianRelease, mean_sensitivity
from fedcore.accounting.whole_silo import WholeSilo, group_privacy, whole_silo_epsilon
from tests.gaussian_curve import delta_by_hand, epsilon_by_hand, mu_by_hand

DELTA = 1e-5
C = 0.7
WHOLE = 2 * C * (1 + 1e-6)
"""Largest move of the mean of any number of clipped gradients when all of them are replaced."""


def answers(n, sigma, count=1, start=0, batch=None, sampling="full"):
    """About n records, with noise sigma on the mean of the batch."""
    batch = n if batch is None else batch
    sensitivity = mean_sensitivity(C, batch)
    return GaussianRelease(start, start + n, sensitivity, sigma, count, sampling=sampling, rate=batch / n)


def squares_of_sizes(records, rate, count):
    """The distribution of b_1^2 + ... + b_R^2 of independent binomial sizes: exact, by convolving whole numbers."""
    one = np.zeros(records**2 + 1)
    one[np.arange(records + 1) ** 2] = binom.pmf(np.arange(records + 1), records, rate)
    total = np.ones(1)
    for _ in range(count):
        total = np.maximum(fftconvolve(total, one), 0.0)
    return total


def exact_epsilon(records, rate, multiplier, count, delta, more=0.0):
    """Epsilon of answers that show their samples' sizes: a Gaussian mechanism with a random mu^2. `more`: mu^2
    of other answers."""
    law = squares_of_sizes(records, rate, count)
    at = np.flatnonzero(law > 1e-18)
    mu = np.sqrt(at / multiplier**2 + more)

    def delta_at(epsilon):
        with np.errstate(divide="ignore", invalid="ignore"):
            each = ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
        return float(law[at] @ np.where(mu > 0, each, 0.0))

    low, high = 0.0, 200.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return high


def test_full_batches_and_fixed_samples_move_by_twice_the_clip_whatever_their_size():
    for n, batch, sampling in ((40, None, "full"), (40, 7, "without-replacement"), (1000, 250, "without-replacement")):
        found = whole_silo_epsilon([answers(n, 3.0, 9, batch=batch, sampling=sampling)], DELTA)
        assert found == pytest.approx(epsilon_by_hand(3 * WHOLE / 3.0, DELTA), rel=1e-9)


def test_pieces_add_up_where_records_pay_for_the_largest_only():
    blocks = [answers(10, 2.0, start=10 * r) for r in range(6)]
    assert spent(blocks, DELTA) == pytest.approx(epsilon_by_hand(WHOLE / 10 / 2.0, DELTA), rel=1e-9)
    assert whole_silo_epsilon(blocks, DELTA) == pytest.approx(epsilon_by_hand(math.sqrt(6) * WHOLE / 2.0, DELTA))
    mixed = [*blocks, answers(30, 1.5, 4, batch=6, sampling="without-replacement"), answers(5, 9.0, 2, start=70)]
    by_hand = math.sqrt(6 / 2.0**2 + 4 / 1.5**2 + 2 / 9.0**2) * WHOLE
    assert whole_silo_epsilon(mixed, DELTA) == pytest.approx(epsilon_by_hand(by_hand, DELTA), rel=1e-9)


def test_a_size_that_the_rate_gives_a_last_bit_too_large_is_that_size():
    for size, n in ((3, 10), (49, 49 * 3), (7, 100), (1, 3)):
        event = answers(n, 1.0, batch=size, sampling="without-replacement")
        assert whole_silo_epsilon([event], DELTA) == pytest.approx(epsilon_by_hand(WHOLE, DELTA), rel=1e-9)


@pytest.mark.parametrize(
    ("records", "rate", "count", "relative"),
    [(12, 0.5, 4, 0.4), (30, 0.2, 12, 0.4), (24, 0.875, 20, 0.6), (40, 0.05, 9, 1.0)],
)
def test_poisson_samples_cost_what_the_law_of_their_sizes_says(records, rate, count, relative):
    sigma = relative * WHOLE * math.sqrt(count)
    event = answers(records, sigma, count, batch=rate * records, sampling="poisson")
    exact = exact_epsilon(records, rate, sigma / event.sensitivity, count, DELTA)
    found = whole_silo_epsilon([event], DELTA)
    assert exact * (1 - 1e-9) <= found <= exact * 1.004
    # More than samples of a fixed size, far less than if all records could be in each.
    assert found > whole_silo_epsilon([replace(event, sampling="without-replacement")], DELTA)


def test_grouped_sizes_of_large_samples_stay_above_the_law_and_close():
    records, rate, count = 400, 0.3, 6
    event = answers(records, 3.0, count, batch=120.0, sampling="poisson")
    exact = exact_epsilon(records, rate, 3.0 / event.sensitivity, count, DELTA)
    assert exact * (1 - 1e-9) <= whole_silo_epsilon([event], DELTA) <= exact * 1.01


def test_samples_and_full_batches_compose():
    sampled = answers(20, 2.0, 5, batch=6.0, sampling="poisson")
    full = answers(33, 1.6, 2, start=20)
    exact = exact_epsilon(20, 0.3, 2.0 / sampled.sensitivity, 5, DELTA, more=2 * (WHOLE / 1.6) ** 2)
    assert exact * (1 - 1e-9) <= whole_silo_epsilon([sampled, full], DELTA) <= exact * 1.004


def test_no_pair_of_data_sets_is_told_apart_better_than_stated():
    """All records at +C against all at -C: the privacy curve of one answer that does not show its size, integrated."""
    records, rate, sigma = 10, 0.4, 0.9
    event = answers(records, sigma, batch=rate * records, sampling="poisson")
    x, step = np.linspace(-40, 40, 400_001, retstep=True)
    sizes = np.arange(records + 1)
    centres, weights = C * sizes / (rate * records), binom.pmf(sizes, records, rate)

    def density(sign):
        parts = np.exp(-((x[:, None] - sign * centres) ** 2) / (2 * sigma**2))
        return parts @ weights / (sigma * math.sqrt(2 * math.pi))

    here, there = density(1), density(-1)
    for delta in (1e-2, 1e-3, 1e-5):
        stated = whole_silo_epsilon([event], delta)
        attained = np.maximum(here - math.exp(stated) * there, 0).sum() * step
        assert attained <= delta
        # Not far too much, though the bound shows the size: for an answer about 4 records, which is the worst for it.
        assert np.maximum(here - math.exp(0.4 * stated) * there, 0).sum() * step > delta


def test_group_privacy_by_hand_and_how_much_more_noise_it_takes():
    epsilon, delta = group_privacy(8.0, 1e-5, 4)
    assert (epsilon, delta) == (2.0, pytest.approx(1e-5 / 4 / math.exp(6.0)))
    # The other way round: (n e, d (1 + e^e + ... + e^((n-1) e))) for n records is at most what is wanted.
    assert delta * sum(math.exp(k * epsilon) for k in range(4)) <= 1e-5
    epsilon, delta = group_privacy(8.0, 1e-5, 100)
    one, whole = answers(100, 1.0), 2 * C / mu_by_hand(8.0, 1e-5)
    by_groups = one.sensitivity / mu_by_hand(epsilon, delta)
    assert 1.1 < by_groups / whole < 1.2
    # Of 8 blocks group privacy does not see that each is about an eighth of the records.
    assert WholeSilo(8.0, 1e-5).factor([answers(12, 1.0, start=12 * r) for r in range(8)]) == pytest.approx(
        math.sqrt(8) * whole, rel=1e-5
    )
    assert answers(12, 1.0).sensitivity / mu_by_hand(*group_privacy(8.0, 1e-5, 96)) > 3 * math.sqrt(8) * whole


def test_the_factor_brings_the_noise_to_the_target_from_both_sides():
    target = WholeSilo(3.0, DELTA)
    full = [answers(30, 0.2, 7), answers(10, 4.0, 3, start=30)]
    by_hand = math.sqrt(7 * (WHOLE / 0.2) ** 2 + 3 * (WHOLE / 4.0) ** 2) / mu_by_hand(3.0, DELTA)
    assert target.factor(full) == pytest.approx(by_hand, rel=1e-9)
    assert target.factor([answers(30, 1e3)]) == pytest.approx(WHOLE / 1e3 / mu_by_hand(3.0, DELTA), rel=1e-9)
    for sigma in (0.3, 40.0):
        sampled = answers(50, sigma, 6, batch=10.0, sampling="poisson")
        factor = target.factor([sampled])
        assert 2.99 < whole_silo_epsilon([replace(sampled, sigma=sigma * factor)], DELTA) <= 3.0


@given(st.floats(1e-9, 1e-2), st.integers(2, 500), st.integers(1, 50), st.floats(0.5, 5))
def test_a_whole_silo_never_costs_less_than_one_of_its_records(delta, n, count, relative):
    event = answers(n, relative * WHOLE, count)
    record, whole = spent([event], delta), whole_silo_epsilon([event], delta)
    assert record <= whole
    assert delta_by_hand(math.sqrt(count) / relative, whole) <= delta * (1 + 1e-6)


def test_discrete_noise_takes_its_share_of_delta():
    event = replace(answers(20, 1.0), mechanism="discrete-gaussian")
    assert whole_silo_epsilon([event], DELTA) > whole_silo_epsilon([answers(20, 1.0)], DELTA)
    assert whole_silo_epsilon([event], DELTA) == pytest.approx(epsilon_by_hand(WHOLE, DELTA), rel=1e-9)


def test_what_has_no_bound_is_infinite_and_what_is_malformed_is_refused():
    for event in (answers(9, 0.0), answers(9, 1.0, batch=3, sampling="with-replacement")):
        assert whole_silo_epsilon([event, answers(9, 1.0)], DELTA) == math.inf
        assert WholeSilo(1.0, DELTA).factor([event]) == math.inf
    with pytest.raises(ValueError, match="no sound accountant"):
        whole_silo_epsilon([answers(9, 1.0, batch=3)], DELTA)
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        whole_silo_epsilon([answers(9, 1.0)], 0.0)
    assert whole_silo_epsilon([], DELTA) == 0.0
