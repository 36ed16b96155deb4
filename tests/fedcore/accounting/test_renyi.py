"""Renyi divergences of one order: against quadrature with 25 digits, other accountants, and attacks; fixed orders."""

from __future__ import annotations

import math

import mpmath
import pytest
from dp_accounting.rdp import rdp_privacy_accountant as other

from fedcore.accounting.divergences import renyi
from fedcore.accounting.divergences.renyi import conversion, full, implied_order, sampled
from tests.fedcore.accounting.reference_accountant import poisson as reference

CASES = [
    (1.0109, 0.3, 1.1),
    (2.0, 1e-4, 2.0),
    (3.8284271247461903, 0.1, 3.728782),
    (3.8284271247461903, 0.01, 1.182219),
    (6.1873582, 0.999, 0.8),
    (30.0, 0.02, 5.0),
    (181.0, 0.05, 40.0),
    (2.5, 0.2, 0.4),
]


def whole(order, multiplier):
    return full(order, (1 / multiplier) * (1 / multiplier))


def normal(x, mean, deviation):
    return mpmath.exp(-(((x - mean) / deviation) ** 2) / 2) / (deviation * mpmath.sqrt(2 * mpmath.pi))


def by_quadrature(order, of, against, s, low, high):
    """ln of the integral of of^order against^(1 - order), over order - 1; between [low, high] in pieces of 2 s."""
    with mpmath.workdps(25):
        order = mpmath.mpf(order)
        pieces = max(2, math.ceil((high - low) / (2 * s)))
        ends = [low + (high - low) * mpmath.mpf(k) / pieces for k in range(pieces + 1)]
        found = mpmath.quad(lambda x: of(x) ** order * against(x) ** (1 - order), ends, maxdegree=4)
        return mpmath.log(found) / (order - 1)


@pytest.mark.parametrize("order, rate, multiplier", CASES)
def test_a_poisson_answer_has_the_divergence_of_its_worst_pair(order, rate, multiplier):
    """In units of the clipping bound the noise is s = 2 sigma / sensitivity, and a record's gradient is 1 or -1."""
    with mpmath.workdps(25):
        q, s = mpmath.mpf(rate), 2 * mpmath.mpf(multiplier)
        above = lambda x: (1 - q) * normal(x, 0, s) + q * normal(x, 1, s)  # noqa: E731
        below = lambda x: (1 - q) * normal(x, 0, s) + q * normal(x, -1, s)  # noqa: E731
        reach = order + 14 * max(1.0, 2 * multiplier) + (order / (2 * multiplier)) * 2
        there = by_quadrature(order, above, below, float(s), -reach, reach)
        back = by_quadrature(order, below, above, float(s), -reach, reach)
    assert abs(there - back) < 1e-20 + 1e-12 * there
    found = sampled(order, "poisson", rate, multiplier)
    assert there <= found <= float(there) * (1 + 1e-9) + 3e-11 / (order - 1) or found == whole(order, multiplier)
    assert there <= found <= whole(order, multiplier)


@pytest.mark.parametrize("order, rate, multiplier", CASES)
def test_a_sample_of_fixed_size_lies_between_an_attack_and_its_profile(order, rate, multiplier):
    """Attack: the record in place of the target is a sensitivity away. The profile of theorem 9, by quadrature in g."""
    with mpmath.workdps(25):
        q, m, alpha = mpmath.mpf(rate), mpmath.mpf(multiplier), mpmath.mpf(order)
        mixed = lambda x: (1 - q) * normal(x, 0, m) + q * normal(x, 1, m)  # noqa: E731
        alone = lambda x: normal(x, 0, m)  # noqa: E731
        reach = order + 14 * max(1.0, multiplier) + order / multiplier
        attack = by_quadrature(order, mixed, alone, multiplier, -reach, reach)
    found = sampled(order, "without-replacement", rate, multiplier)
    assert attack <= found <= whole(order, multiplier)
    if order * multiplier**-2 > 20 or found == whole(order, multiplier):
        return  # charged as all records
    with mpmath.workdps(20):
        mu, one = 1 / m, mpmath.mpf(1)

        def weighed(t):
            g = 1 + q * (mpmath.exp(t) - 1)
            curve = mpmath.ncdf(mu / 2 - t / mu) - mpmath.exp(t) * mpmath.ncdf(-mu / 2 - t / mu)
            return (g ** (alpha - 2) + g ** (-alpha - 1)) * q * curve * q * mpmath.exp(t)

        end = float(mu * mu * (order + 1) + 16 * mu)
        ends = [mpmath.mpf(end) * k / 8 for k in range(9)]
        profile = mpmath.log(one + alpha * (alpha - 1) * mpmath.quad(weighed, ends, maxdegree=4)) / (alpha - 1)
    assert profile <= found <= float(profile) * (1 + 1e-5)


@pytest.mark.parametrize("order", [1.05, 1.7, 2.3, 3.0, 3.8284271, 12.0])
@pytest.mark.parametrize("multiplier", [0.9, 3.0, 50.0, 1e4])
def test_a_sample_of_all_records_is_a_full_batch(order, multiplier):
    """Theorem 9 is exact at rate 1: its integral is e^(order (order-1) / (2 m^2)), which nothing here assumes."""
    by_profile = renyi._without_replacement(order, 1.0, multiplier) / (order - 1)
    assert order / (2 * multiplier**2) <= by_profile <= order / (2 * multiplier**2) * (1 + 1e-5)
    for sampling in ("poisson", "without-replacement"):
        assert sampled(order, sampling, 1.0, multiplier) == whole(order, multiplier)
        nearly = sampled(order, sampling, 1 - 1e-9, multiplier)
        assert nearly == pytest.approx(order / (2 * multiplier**2), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("rate", [0.003, 0.1, 0.5])
def test_dp_accountings_numbers_are_met_where_they_are_comparable(rate):
    """Add-or-remove moves a sum half as far as a replacement: a fourth, for much noise. Their bound for samples of
    fixed size (Wang, Balle and Kasiviswanathan 2019), of integer orders, is another proof about the same answer."""
    for order in (2, 4, 7):
        theirs = other._compute_rdp_poisson_subsampled_gaussian(rate, 40.0, [float(order)])[0]
        assert sampled(float(order), "poisson", rate, 20.0) == pytest.approx(4 * theirs, rel=0.01, abs=4e-11)
        for multiplier in (2.0, 8.0):
            bound = other._compute_rdp_sample_wor_gaussian(rate, multiplier, [float(order)])[0]
            assert sampled(float(order), "without-replacement", rate, multiplier) <= bound * (1 + 1e-6)


def test_the_order_follows_from_the_cap_and_its_delta_alone():
    """By hand: the order with the most room for full batches, `ln(1 - 1/a) - ln(delta a) / (a - 1) + a mu^2 / 2`."""
    with mpmath.workdps(30):
        for epsilon, delta, order, room in ((8, "1e-5", 3.8284271, 4.7069), (4, "1e-5", 6.1873582, 2.3082)):
            powers = [1 + mpmath.mpf(2) ** (mpmath.mpf(k) / 8) for k in range(-48, 81)]
            left = lambda a: epsilon - mpmath.log(1 - 1 / a) + mpmath.log(mpmath.mpf(delta) * a) / (a - 1)  # noqa: B023, E731
            best = max(powers, key=lambda a: left(a) / a)
            assert float(best) == pytest.approx(order, abs=5e-8)
            assert implied_order(float(epsilon), float(delta)) == pytest.approx(float(best), rel=1e-15)
            assert float(left(best)) == pytest.approx(room, abs=5e-5)
            mine = epsilon - conversion(float(best), float(delta))
            # A share of 1e-12 of delta is for discrete noise.
            reserved = left(best) + mpmath.log(1 - mpmath.mpf("1e-12")) / (best - 1)
            assert mine == pytest.approx(float(reserved), rel=1e-13) and mine <= left(best)


@pytest.mark.parametrize("rate, multiplier, rounds", [(0.1, 3.728782, 100)])
def test_what_a_filter_admits_is_within_the_cap_as_a_plan_that_was_fixed(rate, multiplier, rounds):
    """34 runs of epsilon 1 at delta 1e-5, composed by an accountant that shares no code, stay below 8; so does one."""
    one = reference(rate, multiplier, rounds, 1e-5)
    assert one.upper <= 1.0005 and one.lower >= 0.998
    runs = math.floor(
        (8 - conversion(implied_order(8.0, 1e-5), 1e-5))
        / (rounds * sampled(implied_order(8.0, 1e-5), "poisson", rate, multiplier))
    )
    assert runs == 34
    assert reference(rate, multiplier, rounds * runs, 1e-5).upper < 8


def test_whatever_the_noise_there_is_a_number_and_never_more_than_of_all_records():
    for sampling in ("poisson", "without-replacement"):
        for order in (1 + 2.0**-6, 2.5, 40.0, 1025.0):
            for rate in (1e-9, 0.2, 1 - 1e-12):
                last = math.inf
                for multiplier in (1e-200, 1e-6, 0.03, 0.2, 1.0, 30.0, 1e5, 1e12, 1e160):
                    found = sampled(order, sampling, rate, multiplier)
                    assert 0 <= found <= whole(order, multiplier)
                    assert found <= last * (1 + 1e-9) + 1e-12
                    last = found


@pytest.mark.parametrize(
    "asked",
    [
        (1.0, "poisson", 0.1, 1.0),
        (0.5, "poisson", 0.1, 1.0),
        (math.nan, "poisson", 0.1, 1.0),
        (math.inf, "poisson", 0.1, 1.0),
        ("2", "poisson", 0.1, 1.0),
        (True, "poisson", 0.1, 1.0),
        (2.0, "with-replacement", 0.1, 1.0),
        (2.0, "shuffled", 0.1, 1.0),
        (2.0, None, 0.1, 1.0),
        (2.0, "poisson", 0.0, 1.0),
        (2.0, "poisson", 1.1, 1.0),
        (2.0, "poisson", math.nan, 1.0),
        (2.0, "poisson", 0.1, 0.0),
        (2.0, "poisson", 0.1, -1.0),
        (2.0, "without-replacement", 0.1, math.nan),
        (2.0, "without-replacement", -0.1, 1.0),
    ],
)
def test_what_has_no_divergence_here_is_refused(asked):
    with pytest.raises(ValueError, match=r"no Renyi divergence is known|is no order"):
        sampled(*asked)


@pytest.mark.parametrize(
    "epsilon, delta",
    [(math.nan, 1e-5), (0.0, 1e-5), (-1.0, 1e-5), (1.0, 0.0), (1.0, 1.0), (1.0, math.nan), (1.0, -1e-5)],
)
def test_no_order_follows_from_what_is_no_cap(epsilon, delta):
    with pytest.raises(ValueError, match="no cap has"):
        implied_order(epsilon, delta)
    if not 0 < delta < 1:
        with pytest.raises(ValueError, match="strictly between 0 and 1"):
            conversion(2.0, delta)
    with pytest.raises(ValueError, match="must be at least 0"):
        full(2.0, math.nan)
