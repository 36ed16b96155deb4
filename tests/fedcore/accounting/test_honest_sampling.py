"""Epsilon if the server draws honestly: closed forms, the plain sum over participations, the spec's tables, order."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import brentq

from fedcore.accounting.composition import spent
from fedcore.accounting.events import RESERVED, GaussianRelease
from fedcore.accounting.honest_sampling import honest_sampling
from fedcore.accounting.loss_distributions.discrete_losses import Answers, Discrete
from fedcore.accounting.loss_distributions.loss_distribution import epsilon_of_curves
from tests.fedcore.accounting.noble_table_1 import LOCAL_STEPS, ROUNDS
from tests.gaussian_curve import delta_by_hand

GRID = 2e-3
"""Largest relative difference of two bounds of one quantity: the step at which the accountant's grid stops."""


def sampled(multiplier, steps=1, rate=0.2, sampling="without-replacement"):
    return GaussianRelease(0, 1000, 1.0, multiplier, steps, sampling=sampling, rate=rate)


def full(multiplier, steps=1, start=0, stop=1000):
    return GaussianRelease(start, stop, 1.0, multiplier, steps)


# Closed forms


def mixture_by_hand(mu_of_rounds, rounds, participation, delta):
    """The epsilon at which `sum_n Binomial(n; rounds, participation) delta_n(epsilon)` is delta.

    `mu_of_rounds`: maps n to the mu of n rounds.
    """
    weights = stats.binom.pmf(np.arange(rounds + 1), rounds, participation)
    mus = [mu_of_rounds(n) for n in range(rounds + 1)]

    def excess(epsilon):
        return sum(w * delta_by_hand(mu, epsilon) for w, mu in zip(weights, mus, strict=True) if w > 0) - delta

    return brentq(excess, 0, 200, xtol=1e-12)


@pytest.mark.parametrize(
    "multiplier, steps, rounds, participation, delta",
    [
        (4.0, 1, 10, 0.3, 1e-6),
        (0.7, 1, 1, 0.5, 1e-5),
        (30.0, 1, 500, 0.05, 1e-9),
        (2.0, 3, 6, 0.9, 1e-3),
        (50.0, 40, 100, 0.2, 1e-12),
        (1.5, 1, 4, 0.01, 1e-7),
    ],
)
def test_full_batches_cost_the_mixture_of_gaussian_curves(multiplier, steps, rounds, participation, delta):
    found = honest_sampling(full(multiplier, steps), rounds, participation, delta)
    by_hand = mixture_by_hand(lambda n: math.sqrt(n * steps) / multiplier, rounds, participation, delta)
    assert by_hand * (1 - 1e-9) <= found <= by_hand * (1 + GRID)


def test_answers_in_any_case_come_on_top():
    """A warm start of full batches: every n includes its answers."""
    warm = full(3.0, 5)
    found = honest_sampling(full(4.0, 2), 12, 0.25, 1e-6, certain=[warm])
    by_hand = mixture_by_hand(lambda n: math.sqrt(2 * n / 16 + 5 / 9), 12, 0.25, 1e-6)
    assert by_hand * (1 - 1e-9) <= found <= by_hand * (1 + GRID)
    assert spent([warm], 1e-6) < found < spent([full(4.0, 24), warm], 1e-6)


def randomized_response(loss):
    """The curve of a bit that is reported truly with odds e^loss: its losses are loss and -loss only."""

    def delta(epsilon):
        inside = (np.exp(loss) - np.exp(np.minimum(epsilon, loss))) / (1 + np.exp(loss))
        return np.where(epsilon <= -loss, 1 - np.exp(epsilon), np.maximum(inside, 0.0))

    return delta


@pytest.mark.parametrize("count, rounds, participation", [(1, 5, 0.4), (3, 4, 0.25), (2, 7, 0.9), (20, 9, 0.1)])
def test_a_bit_told_by_randomized_response_counted_out(count, rounds, participation):
    """Counts all outcomes: n rounds report the bit, j of their n count answers are true, loss (2j - n count) each."""
    loss, delta = 0.4, 1e-3
    truth = math.exp(loss) / (1 + math.exp(loss))

    def excess(epsilon):
        total = 0.0
        for n in range(rounds + 1):
            reports = n * count
            for j in range(reports + 1):
                weight = math.comb(rounds, n) * participation**n * (1 - participation) ** (rounds - n)
                weight *= math.comb(reports, j) * truth**j * (1 - truth) ** (reports - j)
                total += weight * max(0.0, -math.expm1(epsilon - (2 * j - reports) * loss))
        return total - delta

    by_hand = brentq(excess, 0, count * rounds * loss, xtol=1e-12)
    found = epsilon_of_curves([Answers(randomized_response(loss), count, participation, rounds)], delta, 1e-5)
    # The curve has corners at +-loss that lie on the grid to rounding.
    assert by_hand * (1 - 1e-9) <= found <= by_hand * (1 + 1e-3)


@pytest.mark.parametrize("tolerance", [10.0, 0.1, 1e-3])
def test_it_is_an_upper_bound_on_any_grid(tolerance):
    from fedcore.accounting.loss_distributions.loss_curves import gaussian

    parts = [Answers(gaussian(1 / 3), 2, 0.2, 30)]
    exact = mixture_by_hand(lambda n: math.sqrt(2 * n) / 3, 30, 0.2, 1e-6)
    assert exact <= epsilon_of_curves(parts, 1e-6, tolerance) <= exact * 1.05


# Sampled answers: the plain sum over all n


def log_delta_of(event, answers, epsilon):
    """The delta at which the accountant's epsilon of this number of answers is `epsilon`: the inverse of its curve."""
    all_of_them = [replace(event, count=answers)]
    return brentq(
        lambda log_delta: spent(all_of_them, math.exp(log_delta)) - epsilon, math.log(1e-14), math.log(0.5), xtol=1e-3
    )


@pytest.mark.parametrize(
    "sampling, multiplier, rate, steps, rounds, participation",
    [
        ("without-replacement", 3.0, 0.2, 4, 5, 0.4),
        ("without-replacement", 8.0, 0.5, 2, 6, 0.2),
        ("poisson", 1.2, 0.1, 5, 4, 0.5),
    ],
)
def test_sampled_answers_cost_the_plain_sum_over_participations(
    sampling, multiplier, rate, steps, rounds, participation
):
    event = sampled(multiplier, steps, rate, sampling)
    found = honest_sampling(event, rounds, participation, 1e-5)
    total = 0.0
    for n in range(1, rounds + 1):
        weight = stats.binom.pmf(n, rounds, participation)
        if spent([replace(event, count=n * steps)], 1e-14) > found:  # else less than 1e-14 of delta
            total += weight * math.exp(log_delta_of(event, n * steps, found))
    # An epsilon higher by GRID has a delta lower by the slope of the curve, some ten times that.
    assert total == pytest.approx(1e-5, rel=0.03)


# Spec dp-scaffold, 5.5: s = 0.2 everywhere. sigma_g, K, T, m/M, delta, server PLD, certified, as published
CERTIFIED = {
    "synthetic": (60, 50, 400, 0.2, 2.5e-6, 2.030, 0.860),
    "synthetic-100-steps": (60, 100, 400, 0.2, 2.5e-6, 2.983, 1.254),
    "synthetic-few": (60, 50, 400, 0.05, 2.5e-6, 2.030, 0.428),
    "femnist": (30, 50, 400, 0.2, 1.25e-5, 4.090, 1.675),
    "femnist-100-steps": (30, 100, 400, 0.2, 1.25e-5, 6.137, 2.474),
    "mnist": (30, 50, 100, 0.2, 1 / 48_000, 1.803, 0.777),
}


@pytest.mark.parametrize("row", CERTIFIED.values(), ids=CERTIFIED)
def test_settings_of_the_paper_cost_what_the_spec_computed(row):
    multiplier, steps, rounds, participation, delta, server, certified = row
    assert spent([sampled(multiplier, steps * rounds)], delta) == pytest.approx(server, rel=GRID)
    found = honest_sampling(sampled(multiplier, steps), rounds, participation, delta)
    assert found == pytest.approx(certified, abs=6e-4, rel=GRID)


@pytest.mark.parametrize(
    "multiplier, server, certified",
    [
        (2, 213, 65.9),
        (3, 102, 33.7),
        (5, 45.0, 16.0),
        (10, 17.0, 6.58),
        (20, 7.14, 2.91),
        (30, 4.44, 1.85),
        (120, 0.95, 0.41),
    ],
)
def test_more_noise_is_cheaper_as_the_spec_computed(multiplier, server, certified):
    """The saturation table of 5.5, which the paper's own bound hardly shows."""
    assert spent([sampled(multiplier, 20_000)], 2.5e-6) == pytest.approx(server, rel=6e-3)
    assert honest_sampling(sampled(multiplier, 50), 400, 0.2, 2.5e-6) == pytest.approx(certified, rel=1.5e-2)


# The costs of Table 1's cells (5.5), server / certified, at the T that it prints.
CELLS = {
    10: "2.06/0.43 4.80/0.98 6.65/1.34 8.49/1.72 5.28/1.31",
    20: "0.95/0.20 2.20/0.46 3.04/0.63 3.91/0.82 2.57/0.63",
    40: "0.45/0.09 1.02/0.21 1.41/0.30 1.81/0.39 1.21/0.30",
    80: "0.21/0.04 0.48/0.10 0.66/0.14 0.85/0.18 0.57/0.14",
    160: "0.10/0.02 0.23/0.05 0.31/0.07 0.40/0.09 0.27/0.06",
}


@pytest.mark.parametrize("multiplier", CELLS)
def test_cells_of_table_1_cost_what_the_spec_computed(multiplier):
    for steps, rounds, cell in zip(LOCAL_STEPS, ROUNDS[multiplier], CELLS[multiplier].split(), strict=True):
        server, certified = (float(text) for text in cell.split("/"))
        # Published with two decimals.
        assert spent([sampled(multiplier, steps * rounds)], 2.5e-6) == pytest.approx(server, abs=0.0055, rel=GRID)
        found = honest_sampling(sampled(multiplier, steps), rounds, 0.05, 2.5e-6)
        assert found == pytest.approx(certified, abs=0.0055, rel=GRID)


# Order

multipliers = st.floats(1, 40)
counts = st.integers(1, 12)
shares = st.floats(0.02, 0.98)


@settings(max_examples=12, deadline=None)
@given(multipliers, counts, st.integers(1, 40), shares, st.floats(0.05, 0.95), st.floats(-9, -3))
def test_more_of_anything_costs_more_and_never_above_every_round(multiplier, steps, rounds, participation, rate, log):
    delta = 10.0**log
    event = sampled(multiplier, steps, rate)
    base = honest_sampling(event, rounds, participation, delta)
    every = spent([replace(event, count=steps * rounds)], delta)
    assert base <= every
    more = [
        honest_sampling(event, rounds + 3, participation, delta),
        honest_sampling(event, rounds, participation + (1 - participation) / 3, delta),
        honest_sampling(sampled(multiplier, steps + 2, rate), rounds, participation, delta),
        honest_sampling(sampled(multiplier, steps, rate + (1 - rate) / 3), rounds, participation, delta),
        honest_sampling(sampled(multiplier / 1.3, steps, rate), rounds, participation, delta),
        honest_sampling(event, rounds, participation, delta / 3),
        honest_sampling(event, rounds, participation, delta, certain=[event]),
        honest_sampling(sampled(multiplier, steps, 1.0), rounds, participation, delta),
    ]
    assert min(more) >= base * (1 - 2 * GRID)
    assert honest_sampling(event, rounds, 1.0, delta) == every


def test_the_limits_of_participation():
    event = sampled(5.0, 10)
    assert honest_sampling(event, 20, 1.0, 1e-6) == spent([replace(event, count=200)], 1e-6)
    # Every round but by a hair: the same, through the transform.
    every = spent([replace(event, count=200)], 1e-6)
    assert honest_sampling(event, 20, 1 - 1e-9, 1e-6) == pytest.approx(every, rel=GRID)
    # Taking part at all is rarer than delta.
    assert honest_sampling(event, 20, 4e-8, 1e-6) == 0.0
    # One round at participation p: delta / p of one round's answers, by the mixture's one term.
    one = spent([event], 1e-6 / 0.3)
    assert honest_sampling(event, 1, 0.3, 1e-6) == pytest.approx(one, rel=GRID)


def test_totals_of_a_coin_by_hand():
    """One answer: loss 0.5 with 0.7, infinite with 0.3; two of them in a round that comes with 1/4, three rounds."""
    part = Discrete(0.5, 1, np.log(np.array([0.7])), 0.3, Answers(randomized_response(1.0), 2, 0.25, 3))
    assert math.exp(part.log_finite()) == pytest.approx((0.75 + 0.25 * 0.49) ** 3, rel=1e-12)
    # E[exp(2 loss)] of the finite part: 0.75 without answers, and 0.25 (0.7 e)^2.
    assert math.exp(part.total(2.0)) == pytest.approx((0.75 + 0.25 * 0.49 * math.e**2) ** 3, rel=1e-12)
    assert abs(part.spectrum(2.0, 64)[0]) == pytest.approx(1.0, rel=1e-12)


def test_a_certain_round_costs_at_least_a_drawn_one():
    event = sampled(5.0, 10)
    certain = honest_sampling(event, 20, 0.2, 1e-6, certain=[event])
    assert honest_sampling(event, 21, 0.2, 1e-6) < certain < spent([replace(event, count=210)], 1e-6)
    # By hand: n drawn rounds and the certain one are n + 1 rounds.
    weights = stats.binom.pmf(np.arange(21), 20, 0.2)
    total = 0.0
    for n, weight in enumerate(weights):
        if weight > 1e-12 and spent([replace(event, count=10 * (n + 1))], 1e-14) > certain:
            total += weight * math.exp(log_delta_of(event, 10 * (n + 1), certain))
    assert total == pytest.approx(1e-6, rel=0.03)


def test_rounds_by_a_sure_coin_are_answers_in_sequence():
    from fedcore.accounting.loss_distributions.loss_curves import without_replacement

    curve = without_replacement(0.2, 3.0)
    rounds = epsilon_of_curves([Answers(curve, 5, 1.0, 8)], 1e-6)
    assert rounds == pytest.approx(epsilon_of_curves([Answers(curve, 40)], 1e-6), rel=1e-12)


def test_noise_on_a_grid_has_its_share_of_delta():
    event = replace(sampled(5.0, 10), mechanism="discrete-gaussian")
    plain = honest_sampling(sampled(5.0, 10), 20, 0.3, 1e-6 * (1 - RESERVED))
    assert honest_sampling(event, 20, 0.3, 1e-6) == plain
    assert honest_sampling(sampled(5.0, 10), 20, 0.3, 1e-6, certain=[replace(event, count=1)]) > plain


def test_what_has_no_accountant_or_no_noise_is_infinite():
    assert honest_sampling(full(0.0), 5, 0.5, 1e-6) == math.inf
    assert honest_sampling(sampled(0.0), 5, 0.5, 1e-6) == math.inf
    assert honest_sampling(sampled(5.0, sampling="with-replacement"), 5, 0.5, 1e-6) == math.inf
    assert honest_sampling(sampled(5.0), 5, 0.5, 1e-6, certain=[full(0.0)]) == math.inf


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"rounds": 0}, "rounds = 0 must be at least 1"),
        ({"participation": 0.0}, "participation = 0.0 must be above 0"),
        ({"participation": 1.1}, "participation = 1.1 must be above 0 and at most 1"),
        ({"participation": math.nan}, "participation = nan"),
        ({"delta": 0.0}, "delta = 0.0 must lie strictly between"),
        ({"event": sampled(5.0, rate=1.5)}, "no sound accountant"),
        ({"certain": [full(5.0, stop=500)]}, "about the same positions"),
        ({"certain": [replace(full(5.0), adjacency="add-remove")]}, "no sound accountant"),
    ],
)
def test_malformed_questions_are_refused(changes, sentence):
    asked = {"event": sampled(5.0), "rounds": 3, "participation": 0.5, "delta": 1e-6} | changes
    with pytest.raises(ValueError, match=sentence):
        honest_sampling(**asked)
