"""Runs fixed beforehand, against an accountant of this file: masses by hand, plain transforms, brackets on epsilon."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import pytest
from numpy.fft import irfft, rfft
from scipy.optimize import brentq
from scipy.special import ndtr

from fedcore.accounting.composition import spent
from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.fixed_plan import MOST_COMBINATIONS, fixed_plan
from fedcore.accounting.gaussian import epsilon_of

DELTA = 1e-5
A = GaussianRelease(0, 10, 1.0, 1 / 0.16)
B = GaussianRelease(10, 20, 1.0, 0.4, 5, sampling="poisson", rate=0.01)
"""The spec's shards: one full batch of mu 0.16, and five Poisson answers of rate 0.01 and multiplier 0.4."""

# An accountant: losses on multiples of STEP in [-HALF, HALF), rounded up or down, composed by a plain transform.
STEP, HALF = 2.0**-15, 16.0
SIZE = round(2 * HALF / STEP)


def on_grid(losses, masses, up):
    """The discrete Fourier transform of masses at losses, each rounded up (or down) to the grid."""
    index = (np.ceil if up else np.floor)(losses / STEP).astype(np.int64)
    assert abs(index).max() < SIZE // 2
    found = np.zeros(SIZE)
    np.add.at(found, index % SIZE, masses)
    return rfft(found)


@lru_cache
def mixture(rate, multiplier, up):
    """P = (1-q) N(0, s) + q N(1, s) against Q with -1, s twice the multiplier; cells of x, each at its worse end."""
    s = 2 * multiplier
    x = np.linspace(-9 * s, 1 + 9 * s, 200_001)
    below = (1 - rate) * ndtr(x / s) + rate * ndtr((x - 1) / s)
    losses = np.log1p(rate * np.expm1((x - 0.5) / s**2)) - np.log1p(rate * np.expm1((-x - 0.5) / s**2))
    return on_grid(losses[1:] if up else losses[:-1], np.diff(below), up)


@lru_cache
def normal(mu, up):
    """Losses of the Gaussian mechanism: N(mu^2 / 2, mu^2)."""
    x = np.linspace(mu * mu / 2 - 9 * mu, mu * mu / 2 + 9 * mu, 200_001)
    return on_grid(x[1:] if up else x[:-1], np.diff(ndtr((x - mu * mu / 2) / mu)), up)


def epsilon(spectrum, delta=DELTA):
    mass = np.roll(irfft(spectrum, SIZE), SIZE // 2)
    at = STEP * (np.arange(SIZE) - SIZE // 2)

    def excess(e):
        return float(np.sum(mass[at > e] * -np.expm1(e - at[at > e]))) - delta

    return brentq(excess, 0, HALF / 2, xtol=1e-9)


def bracket(full, sampled):
    """Lower and upper epsilon of `full` runs at shard A and `sampled` runs at shard B."""
    ends = []
    for up in (False, True):
        spectrum = mixture(0.01, 0.4, up) ** (5 * sampled)
        ends.append(epsilon(spectrum if not full else spectrum * normal(0.16 * math.sqrt(full), up)))
    return ends


def test_the_specs_runs():
    alone, twenty = bracket(0, 1), bracket(0, 20)
    assert alone[0] == pytest.approx(0.7787, abs=3e-4) and twenty[0] == pytest.approx(1.648, abs=2e-3)
    assert alone[0] <= fixed_plan([[B]], DELTA) <= 1.002 * alone[1]
    assert twenty[0] <= fixed_plan([[B]] * 20, DELTA) <= 1.003 * twenty[1]
    assert fixed_plan([[A]], DELTA) == pytest.approx(0.56859, abs=5e-6)
    assert fixed_plan([[A]] * 20, DELTA) == pytest.approx(2.98308, abs=5e-6)


def test_the_piece_that_costs_most_alone_is_no_bound_on_many_runs():
    """B alone costs more than A, twenty of B far less than twenty of A: curves cross."""
    assert spent([B], DELTA) > spent([A], DELTA)
    found = fixed_plan([[A, B]] * 20, DELTA)
    assert found > 1.8 * fixed_plan([[B]] * 20, DELTA)
    brackets = {full: bracket(full, 20 - full) for full in (20, 19, 15, 10, 3)}
    assert all(low <= found for low, _ in brackets.values())
    assert found <= 1.003 * max(high for _, high in brackets.values())


def test_few_runs_cost_most_in_a_combination_that_is_looked_for():
    """Two runs: both at B cost more than A and B, and than both at A. Each is composed by hand."""
    brackets = {full: bracket(full, 2 - full) for full in range(3)}
    assert max(brackets, key=lambda full: brackets[full][0]) == 0
    found = fixed_plan([[A, B]] * 2, DELTA)
    assert max(low for low, _ in brackets.values()) <= found <= 1.003 * max(high for _, high in brackets.values())


def test_many_combinations_are_bounded_by_the_curve_above_all_pieces():
    """The envelope by hand: the larger of two curves at every epsilon, its dots connected, twenty times itself."""
    runs = MOST_COMBINATIONS + 6
    found = fixed_plan([[A, B]] * runs, DELTA)
    largest = max(bracket(full, runs - full)[0] for full in (runs, runs - 5, runs // 2))
    sampled = GaussianRelease(0, 1, 1.0, 0.4, 5 * runs, sampling="poisson", rate=0.01)
    joined = spent([GaussianRelease(0, 1, 1.0, 1 / 0.16, runs), sampled], DELTA)
    by_hand = epsilon(envelope_by_hand() ** runs)
    assert largest < found < joined
    assert found == pytest.approx(by_hand, rel=4e-3)


def test_the_specs_envelope_of_twenty_runs():
    assert epsilon(envelope_by_hand() ** 20) == pytest.approx(3.014, abs=2e-3)


def envelope_by_hand():
    """Masses of a pair whose profile is the larger of A's and B's at multiples of 2^-9 (Doroshenko et al. 2022)."""
    step = 2.0**-9
    at = step * np.arange(-int(6 / step), int(6 / step) + 1)
    gauss = ndtr(0.08 - at / 0.16) - np.exp(at) * ndtr(-0.08 - at / 0.16)
    mass = np.roll(irfft(mixture(0.01, 0.4, True) ** 5, SIZE), SIZE // 2)
    losses = STEP * (np.arange(SIZE) - SIZE // 2)
    tail, weighted = np.cumsum(mass[::-1])[::-1], np.cumsum((mass * np.exp(-losses))[::-1])[::-1]
    first = np.searchsorted(losses, at, side="right")
    sampled = tail[first] - np.exp(at) * weighted[first]
    delta = np.maximum(np.maximum(gauss, sampled), 0.0)
    fall = -np.diff(delta)
    up, down = np.append(1 - delta[0], fall / -np.expm1(-step)), np.append(fall / np.expm1(step), 0.0)
    return on_grid(at, np.maximum(up - down, 0.0), True)


def test_full_batches_have_a_closed_form_whatever_their_pieces():
    runs = [[GaussianRelease(0, 5, 1.0, 4.0, 3), GaussianRelease(5, 9, 1.0, 3.0)], [GaussianRelease(0, 9, 2.0, 9.0, 7)]]
    by_hand = math.sqrt(max(3 / 16, 1 / 9) + 7 * 4 / 81)
    assert fixed_plan(runs * 50, 1e-7) == pytest.approx(epsilon_of(math.sqrt(50) * by_hand, 1e-7), rel=1e-12)
    # A shard that another has in full, and more, is never the one.
    more = GaussianRelease(10, 20, 1.0, 8.0)
    assert fixed_plan([[B, more, GaussianRelease(20, 30, 1.0, 9.0)]] * 90, DELTA) == fixed_plan([[B, more]] * 90, DELTA)


def test_order_and_grouping_of_runs_decide_nothing():
    other = GaussianRelease(0, 20, 1.0, 0.7, 8, sampling="without-replacement", rate=0.1)
    assert fixed_plan([[A, B], [other], [A]], DELTA) == fixed_plan([[A], [other], [B, A]], DELTA)


def test_one_run_costs_what_it_spends_and_no_run_nothing():
    assert fixed_plan([], DELTA) == 0.0 and fixed_plan([[]], DELTA) == 0.0
    assert fixed_plan([[A, B]], DELTA) == spent([A, B], DELTA)


def test_a_coarse_grid_says_more_and_not_less():
    fine, coarse = (fixed_plan([[A, B]] * 12, 1e-6, tolerance) for tolerance in (2e-3, 2e-2))
    assert fine <= coarse <= 1.02 * fine
    many, fewer = (fixed_plan([[A, B]] * 80, 1e-6, tolerance) for tolerance in (2e-3, 2e-2))
    assert many <= fewer <= 1.02 * many


def test_what_has_no_account_is_infinite_or_refused():
    assert fixed_plan([[A], [GaussianRelease(0, 1, 1.0, 0.0)]], DELTA) == math.inf
    assert fixed_plan([[GaussianRelease(0, 1, 1.0, 9.0, sampling="with-replacement", rate=0.1)]], DELTA) == math.inf
    with pytest.raises(ValueError, match="no sound accountant"):
        fixed_plan([[GaussianRelease(3, 3, 1.0, 1.0)]], DELTA)
    with pytest.raises(ValueError, match="delta"):
        fixed_plan([[A, B]], 0.0)


def test_discrete_noise_takes_its_share_of_delta():
    discrete = GaussianRelease(0, 10, 1.0, 1 / 0.16, mechanism="discrete-gaussian")
    assert fixed_plan([[discrete]] * 3, DELTA) == epsilon_of(0.16 * math.sqrt(3), DELTA * (1 - 1e-12))
