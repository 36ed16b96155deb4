"""Simulated silos: partitions, what they share, and what they do not depend on."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from fedcore.data.sources.generators import DIGIT_CLASS_COUNTS, digit_shares, digits, synthetic
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


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**70))
@settings(max_examples=25, deadline=None)
def test_a_silo_does_not_depend_on_the_number_of_silos_or_test_records(few, many, seed):
    a = synthetic(few, 5, 3, 1.5, 7, seed)
    b = synthetic(many, 5, 3, 1.5, 40, seed)
    shared = sorted(a.silos.keys() & b.silos.keys())
    assert len(shared) == min(few, many)
    for name in shared:
        assert rows(a.silos[name]) == rows(b.silos[name])
        assert a.silos[name].labels.tolist() == b.silos[name].labels.tolist()


def test_no_two_silos_and_no_test_record_are_drawn_alike():
    made = synthetic(30, 20, 2, 0.0, 100, 5)
    seen = [row for table in (*made.silos.values(), made.test) for row in rows(table)]
    assert len(set(seen)) == len(seen) == 30 * 20 + 100


@pytest.mark.parametrize("test_records", [1, 5, 17])
def test_test_records_have_their_number(test_records):
    made = synthetic(5, 2, 3, 1.0, test_records, 0)
    assert made.test.features.shape == (test_records, 3) and made.test.labels.shape == (test_records,)


def test_heterogeneity_is_the_spread_of_the_silos():
    """Means of silos spread by heterogeneity / sqrt(d) per coordinate, apart from 1 / sqrt(n) of sampling."""
    d, n = 10, 400

    def spread(heterogeneity):
        made = synthetic(60, n, d, heterogeneity, 1, 0)
        return np.array([table.features.mean(axis=0) for table in made.silos.values()]).std()

    assert spread(0.0) == pytest.approx(1 / np.sqrt(n), rel=0.1)
    assert spread(2.0) == pytest.approx(np.sqrt(4.0 / d + 1 / n), rel=0.1)


def test_labels_follow_the_logistic_law():
    """Without heterogeneity all silos share w0: a fit on many records finds it."""
    from scipy.optimize import minimize

    made = synthetic(4, 5000, 3, 0.0, 5000, 1)
    X = np.concatenate([t.features for t in made.silos.values()])
    sign = 2 * np.concatenate([t.labels for t in made.silos.values()]) - 1
    w = minimize(lambda w: np.logaddexp(0, -sign * (X @ w)).mean(), np.zeros(3)).x
    w0 = np.random.default_rng(np.random.SeedSequence([1, 101])).standard_normal(3)
    np.testing.assert_allclose(w, w0, atol=0.1)
    chance = 1 / (1 + np.exp(-made.test.features @ w0))  # the test set obeys the same weights
    assert made.test.labels.mean() == pytest.approx(chance.mean(), abs=4 * 0.5 / np.sqrt(5000))
