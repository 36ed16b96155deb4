"""Instruments of one question as functions: exact thresholds, stated powers, refusals."""

import math

import numpy as np
import pytest
from scipy import stats

from fedcore.audit.addresses import Sent, second_release
from fedcore.audit.cells import cosine
from fedcore.audit.finding import Finding
from fedcore.audit.instruments import sampling, variance
from fedcore.audit.instruments.clipping import clipping
from fedcore.audit.instruments.independence import _same
from fedcore.audit.instruments.reuse import ROWS, reuse


def frequency(alarms, trials, claimed):
    """True if a count of alarms fits a claimed probability; wrong with probability below 1e-4."""
    low, high = stats.binom.ppf([5e-5, 1 - 5e-5], trials, claimed)
    return low <= alarms <= high


def test_variance_alarms_at_its_stated_rate():
    rng, count, level = np.random.default_rng(0), 300, 0.02
    noise = rng.standard_normal((1500, count))
    for ratio in (1.0, 0.9, 1.1):
        alarms = sum(not variance.variance(ratio * row, level).passed for row in noise)
        assert frequency(alarms, len(noise), variance.power(count, ratio, level))
    assert variance.power(count, 1.0, level) == pytest.approx(level)


def test_variance_needs_the_least_number_of_residuals():
    needed = variance.residuals_needed(1e-4)
    assert variance.power(needed, 0.9, 1e-4) >= 0.999 > variance.power(needed - 1, 0.9, 1e-4)
    assert 2000 < needed < 3000


def test_clipping_alarms_at_its_stated_rate():
    rng, level, answers = np.random.default_rng(1), 0.02, 4
    direction = np.array([0.6, 0.8, 0.0])
    sensitivity, noise = np.array([2.0, 2.0, 1.0, 1.0]), np.array([3.0, 1.0, 1.0, 2.0])
    alarms = 0
    for _ in range(4000):
        shift = sensitivity[:, None] * direction + noise[:, None] * rng.standard_normal((answers, 3))
        alarms += not clipping(shift, direction, noise, sensitivity, level).passed
    assert frequency(alarms, 4000, level)
    far = clipping(5 * sensitivity[:, None] * direction, direction, noise, sensitivity, level)
    assert far.statistic == pytest.approx(5.0) and not far.passed


def test_reuse_alarms_at_a_shared_vector_in_any_pair_and_seldom_else():
    rng, alarms = np.random.default_rng(2), 0
    for _ in range(300):
        alarms += not reuse(rng.standard_normal((12, 5)), 0.05).passed
    assert alarms <= stats.binom.isf(1e-4, 300, 0.05)
    for width in (1, 2, 200):
        rows = rng.standard_normal((40, width))
        assert reuse(rows, 1e-4).passed
        rows[31] = rows[7] + 1e-15  # rounding left by the subtraction of known inputs
        assert not reuse(rows, 1e-4).passed
    assert "79800 pairs" in reuse(rng.standard_normal((3 * ROWS, 8)), 1e-4).detail


@pytest.mark.parametrize("width", [1, 2, 3])
def test_numbers_that_a_grid_makes_equal_are_no_reused_noise(width):
    """On a grid chance often makes releases of one number equal, longer ones seldom; shared noise is found."""
    rng, step = np.random.default_rng(4), 2.0**-12
    rows = np.rint(rng.standard_normal((300, width)) / step) * step
    assert reuse(rows, 1e-6, step).passed
    assert (_same(rows, step) >= 1e-6).all()
    equal = [(reuse(rows, 1e-6).passed, bool((_same(rows, 0.0) >= 1e-6).all()))]
    assert equal == [(width > 1, width > 1)]
    longer = rng.standard_normal((300, 8))
    longer[31] = longer[7, ::-1] + step
    assert (_same(longer, step) < 1e-6).all()


def test_in_the_plane_rounding_is_no_common_direction():
    """Of two million pairs of directions in the plane some are closer than double precision resolves.

    In space none are.
    """
    assert math.comb(2000, 2) * cosine(np.ones(1), 2)[0] > 1e-2
    assert cosine(np.ones(1), 3)[0] * math.comb(2000, 2) < 1e-6


def test_sampling_alarms_at_its_stated_rate():
    rng, rate, level = np.random.default_rng(3), 0.1, 0.05
    for factor in (1.0, 1.5):
        counts = rng.binomial(400, factor * rate, size=1000)
        alarms = sum(not sampling.sampling_rate(int(count), 400, rate, level).passed for count in counts)
        assert frequency(alarms, 1000, sampling.power(400, rate, factor, level))
    assert sampling.power(400, rate, 1.0, level) <= level
    assert sampling.power(sampling.trials_needed(0.01, 1e-4), 0.01, 2.0, 1e-4) >= 0.999


def test_addresses_separate_repeats_from_second_releases():
    first = Sent("a", "run", 1, 1, b"x")
    others = [Sent("b", "run", 1, 1, b"y"), Sent("a", "run2", 1, 1, b"y"), Sent("a", "run", 1, 2, b"y")]
    assert second_release([first, first, *others]).passed
    finding = second_release([first, *others, first._replace(payload_digest=b"z")])
    assert not finding.passed and finding.statistic == 1 and "silo a, run run, round 1.1" in finding.detail


def test_what_is_not_a_number_alarms():
    rows = np.full((3, 2), np.nan)
    assert not variance.variance(rows, 1e-4).passed
    assert not reuse(rows, 1e-4).passed
    assert not clipping(rows, np.ones(2), np.ones(3), np.ones(3), 1e-4).passed


def test_nothing_observed_is_refused():
    empty = np.zeros((0, 2))
    for call in (
        lambda: variance.variance(empty, 1e-4),
        lambda: reuse(empty, 1e-4),
        lambda: second_release([]),
        lambda: clipping(empty, np.ones(2), np.ones(0), np.ones(0), 1e-4),
        lambda: sampling.sampling_rate(1, 0, 0.1, 1e-4),
        lambda: sampling.sampling_rate(9, 5, 0.1, 1e-4),
        lambda: sampling.sampling_rate(1, 5, 1.0, 1e-4),
        lambda: variance.residuals_needed(1e-4, ratio=1.0),
    ):
        with pytest.raises(ValueError):
            call()


def test_a_finding_is_plain_json():
    plain = Finding("x", True, math.nan, math.inf, 0.0, "sentence").as_json()
    assert plain == {
        "instrument": "x",
        "passed": True,
        "statistic": None,
        "threshold": None,
        "false_alarm": 0.0,
        "detail": "sentence",
    }
