"""Masks from public randomness: uniform, fresh by address, and unbiased when spread."""

import math
from collections import Counter

import numpy as np
import pytest

from fedcore.optim.random_mask import random_mask, spread


def test_every_set_of_coordinates_is_as_likely():
    found = Counter(tuple(np.flatnonzero(random_mask(0, "a", 1, round, 5, 2))) for round in range(1, 4001))
    assert len(found) == math.comb(5, 2)
    expected = 4000 / len(found)
    assert sum((count - expected) ** 2 / expected for count in found.values()) < 35  # chi-square of 9, beyond 1e-4


@pytest.mark.parametrize("other", [(1, "a", 1, 1), (0, "b", 1, 1), (0, "a", 2, 1), (0, "a", 1, 2)])
def test_masks_are_fresh_for_each_seed_silo_phase_and_round(other):
    assert (random_mask(0, "a", 1, 1, 100, 30) != random_mask(*other, 100, 30)).any()
    np.testing.assert_array_equal(random_mask(*other, 100, 30), random_mask(*other, 100, 30))


def test_what_is_spread_is_unbiased_with_the_variance_of_the_definition():
    """E S(y) = y and E |S(y) - y|^2 = (d / k - 1) |y|^2 (spec dp-fcrn 5.4)."""
    y, rounds = np.array([3.0, -1.0, 0.5, 2.0, -4.0, 0.0]), 20_000
    made = []
    for round in range(rounds):
        mask = random_mask(5, "a", 1, round, 6, 2)
        made.append(spread(y[mask > 0], mask))
    variance = (6 / 2 - 1) * (y @ y)
    assert np.linalg.norm(np.mean(made, axis=0) - y) < 5 * math.sqrt(variance / rounds)
    squares = ((np.array(made) - y) ** 2).sum(axis=1)
    assert squares.mean() == pytest.approx(variance, abs=5 * squares.std() / math.sqrt(rounds))


def test_a_mask_of_all_is_the_identity():
    y = np.arange(4.0)
    mask = random_mask(0, "a", 1, 1, 4, 4)
    assert mask.all() and (spread(y, mask) == y).all()
