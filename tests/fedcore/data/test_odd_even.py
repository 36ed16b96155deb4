"""Dealing digits out to odd/even silos: sizes by hand, and every image in one place."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.data.sources.odd_even import PAIRS, divide, shares
from fedcore.errors import InputError

MNIST = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]  # training images of each digit


def test_sizes_by_hand():
    share = shares([10] * 10, 0.2, 0.1)
    assert (share.test, share.public, share.silos) == ((2,) * 10, (1,) * 10, (7,) * 10)
    sizes = share.silo_sizes()
    # Seven images of a digit in fifths: 2, 2, 1, 1, 1. Silo (o, e) has the fifth e / 2 of o and (o - 1) / 2 of e.
    assert (sizes["o1e0"], sizes["o1e4"], sizes["o5e2"], sizes["o9e8"]) == (4, 3, 3, 2)
    assert len(sizes) == 25 and sum(sizes.values()) == 70


def test_silos_of_the_paper():
    """A silo has 1,084 of a digit (a fifth of the rarest, 5,421), 80 % for training: n = int(0.8 * 2168) = 1734."""
    sizes = shares(MNIST, 0.2, per_digit=5420).silo_sizes()
    assert min(sizes.values()) == 1734 and max(sizes.values()) == 1736
    both = [n + m for n, m in zip(MNIST, [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009], strict=True)]
    assert min(shares(both, 0.2, 0.1, per_digit=6194).silo_sizes().values()) in (1733, 1734)


@settings(max_examples=40)
@given(
    st.lists(st.integers(20, 60), min_size=10, max_size=10),
    st.floats(0.02, 0.4),
    st.sampled_from([0.0, 0.1, 0.25]),
    st.booleans(),
    st.integers(0, 9),
)
def test_every_image_is_in_one_place_and_silos_hold_their_two_digits(counts, test, public, some, seed):
    rng = np.random.default_rng(seed)
    digit = rng.permutation(np.repeat(np.arange(10), counts))
    share = shares(counts, test, public, per_digit=20 if some else None)
    made = divide(digit, share, rng)
    used = 200 if some else sum(counts)
    places = [*made.silos.values(), made.test, made.public]
    rows = np.concatenate(places)
    assert len(set(rows.tolist())) == len(rows) == used
    assert all((np.diff(part) > 0).all() for part in places)
    assert (len(made.test), len(made.public)) == (round(test * used), round(public * used))
    assert {name: len(part) for name, part in made.silos.items()} == share.silo_sizes()
    for (odd, even), (name, part) in zip(PAIRS, made.silos.items(), strict=True):
        assert name == f"o{odd}e{even}" and set(digit[part]) == {odd, even}
    for label in range(10):
        held = [Counter(digit[part].tolist())[label] for part in made.silos.values()]
        held = [n for n in held if n]
        assert len(held) == 5 and max(held) - min(held) <= 1


def test_setting_public_images_aside_leaves_the_test_images_as_they_are():
    digit = np.repeat(np.arange(10), 30)
    a, b = (divide(digit, shares([30] * 10, 0.2, public), np.random.default_rng(3)) for public in (0.0, 0.3))
    assert a.test.tolist() == b.test.tolist() and len(a.public) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([30] * 10, 0.9), r"data\.test_fraction = 0\.9 sets aside 270 of 300 images; it must set aside at least one"),
        (([30] * 10, 0.001), r"data\.test_fraction = 0\.001 sets aside 0 of 300"),
        (([30] * 10, 0.4, 0.5), r"data\.pca\.fraction = 0\.5 and data\.test_fraction = 0\.4 set aside 150 \+ 120"),
        (([30] * 9 + [29], 0.2, 0.0, 30), r"data\.per_digit = 30, but there are 29 images of digit 9"),
        (([30] * 9 + [0], 0.2), r"data\.test_fraction"),
    ],
)
def test_shares_that_leave_a_part_empty_are_refused(arguments, words):
    with pytest.raises(InputError, match=words):
        shares(*arguments)


@settings(max_examples=40)
@given(st.integers(10, 40), st.floats(0.0, 1.0), st.integers(0, 9))
def test_a_part_of_each_silo_is_pooled_and_dealt_back_and_the_rest_stays(each, homogeneity, seed):
    digit = np.random.default_rng(seed).permutation(np.repeat(np.arange(10), each))
    share = shares([each] * 10, 0.2, 0.1)
    apart, mixed = (divide(digit, share, np.random.default_rng(seed), part) for part in (0.0, homogeneity))
    assert (mixed.test == apart.test).all() and (mixed.public == apart.public).all()
    rows = np.concatenate([*mixed.silos.values()])
    assert sorted(rows) == sorted(np.concatenate([*apart.silos.values()])) and len(set(rows.tolist())) == len(rows)
    for name, part in mixed.silos.items():
        own = apart.silos[name]
        assert len(part) == len(own) and (np.diff(part) > 0).all()
        assert len(set(part.tolist()) & set(own.tolist())) >= len(own) - round(homogeneity * len(own))


def test_silos_are_alike_where_all_images_are_pooled():
    """400 images in each of 25 silos: of a digit 40 +- 6.0, hypergeometric; at a half 20 of each other digit."""
    digit = np.repeat(np.arange(10), 1250)
    share = shares([1250] * 10, 0.2)
    alike, half = (divide(digit, share, np.random.default_rng(1), part) for part in (1.0, 0.5))
    held = np.array([np.bincount(digit[rows], minlength=10) for rows in alike.silos.values()])
    assert (abs(held - 40) < 5 * 6.0).all() and 4.5 < held.std() < 7.5
    for (odd, even), rows in zip(PAIRS, half.silos.values(), strict=True):
        counts = np.bincount(digit[rows], minlength=10)
        assert (abs(np.delete(counts, [odd, even]) - 20) < 5 * 4.4).all()
        assert (abs(counts[[odd, even]] - 120) < 5 * 6).all()
