"""Centres and scales from noised moments: exact without noise, sensible under any."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.data.constants import shrinkage
from fedcore.data.constants.shrinkage import LEAST_SCALE, USUAL_SCALE, centres_and_scales


def moments(X):
    return X.mean(axis=0), (X**2).mean(axis=0)


def test_without_noise_they_are_mean_and_deviation():
    X = np.random.default_rng(0).uniform(-1, 0.5, (200, 4)) * [1, 0.5, 0.1, 0]
    centres, scales = centres_and_scales(*moments(X), 0.0)
    np.testing.assert_allclose(centres, X.mean(axis=0), atol=1e-15)
    np.testing.assert_allclose(scales[:3], X.std(axis=0)[:3], rtol=1e-12)
    assert scales[3] == pytest.approx(LEAST_SCALE)  # it does not vary: nothing is magnified without end


def test_noise_that_swallows_everything_leaves_the_middles_of_ranges_and_what_is_usual():
    rng = np.random.default_rng(1)
    centres, scales = centres_and_scales(*rng.normal(0, 1e6, (2, 8)), 1e6)
    assert np.abs(centres).max() <= 1 and scales.max() / scales.min() < 1.01
    assert 0.5 * USUAL_SCALE < scales[0] < 1.5 * USUAL_SCALE


def test_little_noise_changes_little():
    X = np.random.default_rng(2).normal(0.2, 1, (3000, 5)) * [0.3, 0.2, 0.1, 0.05, 0.3]
    noise = 1e-4
    means, squares = moments(X)
    rng = np.random.default_rng(3)
    centres, scales = centres_and_scales(means + rng.normal(0, noise, 5), squares + rng.normal(0, noise, 5), noise)
    np.testing.assert_allclose(centres, means, atol=5 * noise)
    np.testing.assert_allclose(scales, X.std(axis=0), rtol=0.05)


@given(st.lists(st.tuples(st.floats(-50, 50), st.floats(-50, 50)), min_size=1, max_size=6), st.floats(1e-6, 30))
def test_whatever_was_released_they_are_finite_and_in_bounds_and_do_not_hang_on_the_order(pairs, noise):
    means, squares = np.array(pairs).T
    centres, scales = centres_and_scales(means, squares, noise)
    assert (np.abs(centres) <= 1).all() and (scales >= LEAST_SCALE * (1 - 1e-12)).all() and (scales <= 1).all()
    turned = centres_and_scales(means[::-1], squares[::-1], noise)
    np.testing.assert_allclose(np.array(turned)[:, ::-1], [centres, scales], rtol=1e-9, atol=1e-12)


def test_a_column_of_larger_released_variance_has_the_larger_scale():
    squares = np.array([-0.05, 0.02, 0.05, 0.1, 0.2])
    _, scales = centres_and_scales(np.zeros(5), squares, 0.04)
    assert (np.diff(scales) > 0).all() and scales[0] > 0.05


def test_scales_are_the_posterior_means_of_a_sum_over_all_grids():
    """The same sums in plain loops, for two columns."""
    variances, errors = np.array([0.05, -0.01]), np.array([0.03, 0.05])
    rows, weights = [], []
    for level in shrinkage._LEVELS:
        for spread in shrinkage._SPREADS:
            prior = [math.exp(-0.5 * ((s - level) / spread) ** 2) for s in shrinkage._SCALES]
            weight, found = math.exp(-0.5 * ((level - math.log(0.3)) / 0.5) ** 2), []
            for v, e in zip(variances, errors, strict=True):
                likelihood = [math.exp(-0.5 * ((v - math.exp(2 * s)) / e) ** 2) for s in shrinkage._SCALES]
                joint = [p / sum(prior) * q for p, q in zip(prior, likelihood, strict=True)]
                weight *= sum(joint)
                found.append(sum(j * s for j, s in zip(joint, shrinkage._SCALES, strict=True)) / sum(joint))
            rows.append(found)
            weights.append(weight)
    expected = np.exp(np.average(rows, axis=0, weights=weights))
    np.testing.assert_allclose(shrinkage._posterior(variances, errors), expected, rtol=1e-9)


@pytest.mark.parametrize("spread", [(0.3, 0.4), (0.1, 0.4)])
def test_they_are_closer_to_the_truth_than_a_floor_under_the_noised_variance(spread):
    """Populations whose variances are near the noise, like 5 silos of 91 records at epsilon 1."""
    noise, mine, floored = 0.06, [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        truth, middles = np.exp(rng.uniform(*np.log(spread), 10)), rng.uniform(-0.3, 0.3, 10)
        means = middles + rng.normal(0, noise, 10)
        squares = truth**2 + middles**2 + rng.normal(0, noise, 10)
        _, scales = centres_and_scales(means, squares, noise)
        plain = np.sqrt(np.maximum(squares - means**2 + noise**2, noise / 4))
        mine.append(np.mean(np.log(scales / truth) ** 2))
        floored.append(np.mean(np.log(plain / truth) ** 2))
    assert np.mean(mine) < 0.8 * np.mean(floored)
