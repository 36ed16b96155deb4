"""Noise on a grid: its inputs and support, its cost in sensitivity and delta, and a check of that cost."""

import hashlib
import hmac
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from fedcore.accounting.gaussian import delta_of
from fedcore.accounting.rounding import ROUNDING
from fedcore.errors import InputError
from fedcore.mechanisms.discrete_gaussian import DiscreteGaussian, Keystream
from fedcore.mechanisms.grid import FINENESS, Grid, GridGaussian, delta_cost, grid_sensitivity

KEY, CONTEXT = b"k" * 32, b"c" * 34
GRID = Grid.of(noise=30.0, clip=1.0, count=1000, dim=64)


def noised(total, key=KEY, context=CONTEXT, grid=GRID):
    return GridGaussian().noised(key, context, total, grid)


def sums(seed=0, dim=64):
    return np.random.Generator(np.random.Philox(key=seed)).uniform(-20, 20, dim)


# What it depends on


def test_one_question_repeats_its_bits():
    total = sums()
    before = total.copy()
    first = noised(total)
    noised(sums(1))
    assert noised(total.copy()).tobytes() == first.tobytes()
    assert np.array_equal(total, before), "the sum was changed in place"


def test_another_last_bit_context_or_key_draws_other_noise():
    total = sums()
    changed = total.copy()
    changed[3] = np.nextafter(changed[3], np.inf)
    others = [
        noised(changed),
        noised(total, context=CONTEXT[:-1] + b"d"),
        noised(total, key=KEY[:-1] + b"l"),
        noised(total, context=CONTEXT + b"\0"),
    ]
    noises = [noised(total) - total, *(other - total for other in others)]
    assert np.count_nonzero(np.abs(np.corrcoef(noises)) > 0.6) == len(noises)
    assert all(np.count_nonzero(noises[0] == other) == 0 for other in noises[1:])


def test_sums_that_round_to_the_same_point_still_draw_other_noise():
    """Else their common noise would cancel, leaving the difference of two rounded sums; here that is zero."""
    total = np.zeros(64)
    tiny = total.copy()
    tiny[0] = GRID.step / 1024
    assert np.count_nonzero(noised(total) == noised(tiny)) == 0


def test_the_answer_is_the_rounded_sum_and_the_noise_of_its_key():
    """Written out with fractions; ties go to the even step."""
    total = sums()
    total[:4] = np.array([0.5, 1.5, -0.5, -2.5]) * GRID.step
    rounded = [round(Fraction(value) / Fraction(GRID.step)) for value in total.tolist()]
    assert rounded[:4] == [0, 2, 0, -2]
    message = len(CONTEXT).to_bytes(8, "little") + CONTEXT + hashlib.sha256(total.tobytes()).digest()
    stream = Keystream(hmac.new(KEY, message, "sha256").digest())
    noise = DiscreteGaussian(GRID.noise / GRID.step).draw(stream, 64).tolist()
    expected = [float((value + drawn) * Fraction(GRID.step)) for value, drawn in zip(rounded, noise, strict=True)]
    assert noised(total).tolist() == expected


# Where it lies


@pytest.mark.parametrize(
    ("noise", "clip", "count", "dim"), [(30.0, 1.0, 1000, 64), (1e-9, 1e-12, 5, 1), (7e8, 3e6, 99, 7)]
)
def test_answers_are_multiples_of_the_step_near_the_sum(noise, clip, count, dim):
    grid = Grid.of(noise, clip, count, dim)
    total = np.full(dim, clip / math.sqrt(dim))
    answer = noised(total, grid=grid)
    steps = answer / grid.step
    assert np.array_equal(steps, np.rint(steps))
    assert np.abs(steps).max() < 2**53
    assert np.abs(answer - total).max() < 7 * noise
    assert math.frexp(grid.step)[0] == 0.5


def test_zero_has_one_sign():
    """A negative sum that rounds to zero must not show in the sign of a zero."""
    answers = np.concatenate([noised(np.full(64, -GRID.step / 4 / (i + 1))) for i in range(50)])
    assert not np.signbit(answers[answers == 0]).any()
    assert not np.signbit(np.array([-0.0]) + np.zeros(1, dtype=np.int64)).any()


def test_noise_has_the_standard_deviation_of_the_plan():
    """False alarm 2e-6 with another key."""
    grid = Grid.of(30.0, 1.0, 100_000, 100_000)
    z = (noised(np.full(100_000, 5.0), grid=grid) - 5.0) / 30.0
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], z.size)
    assert low < (z**2).sum() < high


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300, 1001.0])
def test_a_sum_that_no_clipped_records_have_is_refused(bad):
    total = np.zeros(64)
    total[5] = bad
    with pytest.raises(ArithmeticError, match="larger than clipped records can make it"), np.errstate(all="ignore"):
        noised(total)


def test_the_largest_admissible_sums_are_answered():
    for total in (np.full(64, 1000.0 / 8), np.append(np.zeros(63), -1000.0)):
        assert np.isfinite(noised(total * (1 + ROUNDING))).all()


@pytest.mark.parametrize(
    "total", [np.zeros(63), np.zeros((64, 1)), np.zeros(64, dtype=np.float32), np.zeros(64, dtype=int)]
)
def test_a_sum_of_another_form_is_refused(total):
    with pytest.raises(ValueError, match="64 float64"):
        noised(total)


@pytest.mark.parametrize(
    ("noise", "clip", "count", "dim"),
    [
        (0.0, 1.0, 10, 4),
        (-1.0, 1.0, 10, 4),
        (math.nan, 1.0, 10, 4),
        (1.0, 0.0, 10, 4),
        (1.0, 1.0, 0, 4),
        (1.0, 1.0, 10, 0),
        (math.inf, 1.0, 10, 4),
        (1e-300, 1.0, 10, 4),
        (1e-3, 1.0, 10**13, 4),
        (1e12, 1.0, 10, 4),
        (1.0, 1.0, 10**9, 10**6),
    ],
)
def test_public_numbers_without_a_grid_are_refused(noise, clip, count, dim):
    with pytest.raises(InputError):
        Grid.of(noise, clip, count, dim)


def test_noise_has_less_than_2_to_the_49_steps():
    """The sampler takes no more; above it by a seventh, sums with their noise would still fit into 53 bits."""
    step, count, dim = 2.0**-20, 10, 4
    most = 2.0**49 * step
    below = Grid.of(np.nextafter(most, 0.0), 1.0, count, dim)
    assert below.step == step
    assert noised(np.zeros(dim), grid=below).shape == (dim,)
    for noise in (most, 1.1 * most):
        with pytest.raises(InputError, match=r"more than 2\^49 steps of a grid for gradients of norm 1"):
            Grid.of(noise, 1.0, count, dim)


# What it costs


@pytest.mark.parametrize("dim", [1, 64, 1000, 10**6])
@pytest.mark.parametrize("noise", [0.01, 1.0, 3000.0])
def test_the_grid_adds_at_most_a_millionth_to_the_sensitivity(dim, noise):
    grid = Grid.of(noise, 1.0, 100_000, dim)
    assert grid.step <= FINENESS * noise
    assert 2.0 < grid_sensitivity(2.0, grid.step, dim) <= 2.0 * (1 + FINENESS + 2.0**-37)


def test_charged_sensitivity_covers_rounding():
    """Worst found: pairs that straddle half steps in every coordinate."""
    step, rng = 2.0**-4, np.random.Generator(np.random.Philox(key=1))
    for dim in (1, 5, 300):
        for _ in range(200):
            a, change = rng.uniform(-3, 3, dim), rng.normal(size=dim)
            b = a + change / np.linalg.norm(change)
            moved = np.linalg.norm(np.rint(a / step) - np.rint(b / step)) * step
            assert moved <= grid_sensitivity(float(np.linalg.norm(a - b)), step, dim)
        a = np.full(dim, 0.5 * step - 1e-12)
        moved = np.linalg.norm(np.rint(a / step) - np.rint((a + 2e-12) / step)) * step
        assert moved == pytest.approx(math.sqrt(dim) * step)
        assert moved <= grid_sensitivity(2e-12 * math.sqrt(dim), step, dim)


def test_delta_of_the_sampler_is_negligible_beside_any_delta_of_a_plan():
    assert delta_cost(1, 1, 0.0) == 2.0**-124
    assert delta_cost(10**6, 10**6, 1.0) < 1e-25
    assert delta_cost(10**6, 10**6, 20.0) < 1e-16
    assert delta_cost(10, 1, 1e6) == math.inf
    # Weight of a Gaussian beyond 13 s, with the step that the bound for discrete ones takes off.
    with mpmath.workdps(50):
        tail = mpmath.erfc((13 - mpmath.mpf(2) ** -20) / mpmath.sqrt(2))
        assert tail < mpmath.mpf(2) ** -125.8
        assert tail + mpmath.mpf(2) ** -139 < mpmath.mpf(2) ** -125


# The argument


def test_a_discrete_gaussian_of_variance_five_has_nearly_the_same_constant_everywhere():
    """c(g) of the module's argument, step 2: within 2^-140 of 1."""
    with mpmath.workdps(80):
        for g in (0, 0.25, 0.5):
            total = mpmath.nsum(lambda m, g=g: mpmath.exp(-((m - g) ** 2) / 10), [-mpmath.inf, mpmath.inf])
            assert abs(total / mpmath.sqrt(10 * mpmath.pi) - 1) < mpmath.mpf(2) ** -140


@pytest.mark.parametrize(("s", "shift"), [(8.0, 1), (8.0, 5), (40.7, 3), (40.7, 40)])
@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 3.0])
def test_the_discrete_gaussian_stays_below_the_curve_that_is_charged(s, shift, epsilon):
    """Exact delta of discrete Gaussians against continuous ones of variance s^2 - 5, on grids far too coarse."""
    x = np.arange(-2000, 2001)
    log_weight = -0.5 * (x / s) ** 2
    p = np.exp(log_weight) / np.exp(log_weight).sum()
    q = np.exp(-0.5 * ((x - shift) / s) ** 2) / np.exp(log_weight).sum()
    delta = np.maximum(p - math.exp(epsilon) * q, 0).sum()
    assert delta <= delta_of(shift / math.sqrt(s**2 - 5), epsilon) + 1e-15
