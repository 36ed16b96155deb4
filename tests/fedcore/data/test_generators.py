"""Simulated silos: partitions, shared parts, and independence."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from fedcore.data.sources.generators import DIGIT_CLASS_COUNTS, digit_shares, digits
from fedcore.errors import InputError

IMAGES, DIGIT = load_digits(return_X_y=True)
DIGIT_OF = {(image / 16.0).tobytes(): int(digit) for image, digit in zip(IMAGES, DIGIT, strict=True)}
FRACTIONS = st.floats(0.001, 0.95)


def rows(table):
    return [row.tobytes() for row in table.features]


def test_class_counts_are_those_of_scikit_learn():
    assert tuple(np.bincount(DIGIT)) == DIGIT_CLASS_COUNTS
    assert len(DIGIT_OF) == 1797  # no image is there twice, so an image is known by its bytes


@settings(max_examples=15, deadline=None)
@given(FRACTIONS, st.integers(0, 2**70))
def test_every_image_is_in_exactly_one_place(fraction, seed):
    made = digits(fraction, seed)
    places = Counter(row for table in (*made.silos.values(), made.test) for row in rows(table))
    assert set(places.values()) == {1}
    assert set(places) == set(DIGIT_OF)
    assert len(made.test.labels) == round(fraction * 1797)


@settings(max_examples=15, deadline=None)
@given(FRACTIONS, st.integers(0, 2**32))
def test_each_silo_holds_one_odd_and_one_even_class_in_even_shares(fraction, seed):
    made = digits(fraction, seed)
    assert list(made.silos) == [f"o{odd}e{even}" for odd in (1, 3, 5, 7, 9) for even in (0, 2, 4, 6, 8)]
    shares = {digit: [] for digit in range(10)}
    for name, table in made.silos.items():
        held = Counter(DIGIT_OF[row] for row in rows(table))
        assert set(held) == {int(name[1]), int(name[3])}
        for digit, count in held.items():
            shares[digit].append(count)
        assert [DIGIT_OF[row] % 2 for row in rows(table)] == table.labels.tolist()
    for counts in shares.values():
        assert len(counts) == 5 and max(counts) - min(counts) <= 1


@given(FRACTIONS)
@settings(max_examples=15, deadline=None)
def test_test_set_is_stratified(fraction):
    held_out = Counter(DIGIT_OF[row] for row in rows(digits(fraction, 0).test))
    for digit, count in enumerate(DIGIT_CLASS_COUNTS):
        assert abs(held_out[digit] - fraction * count) < 1.1


@settings(max_examples=15, deadline=None)
@given(FRACTIONS, st.integers(0, 9))
def test_sizes_are_known_without_images(fraction, seed):
    made = digits(fraction, seed)
    sizes = digit_shares(fraction).silo_sizes()
    assert list(sizes.items()) == [(name, len(table.labels)) for name, table in made.silos.items()]


def test_digits_follow_their_seed():
    def content(made):
        return [rows(table) for table in (*made.silos.values(), made.test)]

    assert content(digits(0.2, 3)) == content(digits(0.2, 3))
    assert content(digits(0.2, 3)) != content(digits(0.2, 4))


@pytest.mark.parametrize("fraction", [1e-9, 0.98, 0.99999])
def test_a_fraction_that_empties_a_silo_or_the_test_set_is_refused(fraction):
    for make in (lambda: digits(fraction, 0), lambda: digit_shares(fraction)):
        with pytest.raises(InputError, match=r"data\.test_fraction = .* choose 0\.001 to 0\.95"):
            make()
