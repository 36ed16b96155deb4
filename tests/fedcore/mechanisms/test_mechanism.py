"""Keyed noise and addressed randomness: distribution, independence, and the inputs of a draw."""

import subprocess
import sys
from hashlib import blake2b

import numpy as np
import pytest
from scipy import stats

from fedcore.draws.stream import Draws
from fedcore.mechanisms.gaussian import (
    MOST_AT_ONCE,
    KeyedGaussian,
    NoiseAhead,
    SeededGaussian,
    numbered,
    round_address,
)
from fedcore.randomness import derive, draws, driver_key, generator, participants, public_key, simulation_key

KEY, CONTEXT = b"k" * 32, b"c" * 34


def draw(total, key=KEY, context=CONTEXT):
    return KeyedGaussian().draw(key, context, np.asarray(total, float))


def correlation(a, b):
    return abs(np.corrcoef(a, b)[0, 1])


def test_noise_is_standard_normal_over_many_short_draws():
    """Short vectors are where a reset counter or a reused block would show."""
    noise = KeyedGaussian()
    rows = np.array([noise.draw(KEY, CONTEXT, np.full(8, float(i))) for i in range(5000)])
    flat = rows.ravel()
    assert abs(flat.mean()) < 5 / np.sqrt(flat.size)
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], flat.size)
    assert low < (flat**2).sum() < high
    assert stats.kstest(flat, "norm").pvalue > 1e-4
    assert np.abs(np.corrcoef(rows.T) - np.eye(8)).max() < 6 / np.sqrt(5000)
    assert abs(stats.spearmanr(flat[:-1], flat[1:]).statistic) < 6 / np.sqrt(flat.size)
    assert len(np.unique(flat)) == flat.size


def test_one_question_repeats_its_noise_whatever_came_between():
    noise, total = KeyedGaussian(), np.linspace(0, 1, 7)
    first = noise.draw(KEY, CONTEXT, total)
    noise.draw(KEY, CONTEXT, np.zeros(3))
    before = first.copy()
    np.testing.assert_array_equal(noise.draw(KEY, CONTEXT, total), before)
    np.testing.assert_array_equal(draw(total), before)
    np.testing.assert_array_equal(first, before)  # no buffer is shared


@pytest.mark.parametrize("at", [0, 1500, 2999])
def test_noise_changes_completely_with_the_last_bit_of_the_sum(at):
    total = np.random.default_rng(0).standard_normal(3000)
    other = total.copy()
    other[at] = np.nextafter(other[at], 9)
    assert correlation(draw(total), draw(other)) < 0.1
    assert not set(draw(total)) & set(draw(other))


def test_noise_changes_completely_with_key_and_context():
    total = np.zeros(3000)
    draws = [draw(total), draw(total, key=b"l" * 32), draw(total, context=b"c" * 33 + b"d"), draw(-total)]
    assert np.abs(np.corrcoef(draws) - np.eye(4)).max() < 0.1


def test_derived_keys_tell_addresses_apart():
    addresses = [(), ("",), ("a", "b"), ("ab",), ("a", "", "b"), (1,), ("1",), (b"1",), (1, 2), (12,), ("1", 2)]
    keys = [derive(KEY, *address) for address in addresses]
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 32 for key in keys)
    assert derive(b"other", 1) != derive(KEY, 1)
    seeded = [
        (0, 0, "a", "m"),
        (1, 0, "a", "m"),
        (0, 1, "a", "m"),
        (0, 0, "b", "m"),
        (0, 0, "a", "n"),
        (0, 0, "am", ""),
    ]
    public = [
        public_key(0),
        public_key(1),
        *(driver_key(*of) for of in ((0, 0, "m"), (1, 0, "m"), (0, 1, "m"), (0, 0, ""))),
    ]
    assert len({*public, *(simulation_key(*of) for of in seeded)}) == len(public) + len(seeded)


def test_generators_repeat_and_do_not_overlap():
    a, again, b = generator(KEY, "x", 1), generator(KEY, "x", 1), generator(KEY, "x", 2)
    first = a.standard_normal(3000)
    np.testing.assert_array_equal(first, again.standard_normal(3000))
    assert correlation(first, b.standard_normal(3000)) < 0.1


def test_randomness_is_the_same_in_another_process():
    code = (
        "import numpy as np; from fedcore.randomness import *; from fedcore.mechanisms.gaussian import KeyedGaussian;"
        "print(derive(b'k', 'run', 3, b'x').hex(), draws(b'k', 'y').words(1)[0],"
        "KeyedGaussian().draw(b'k', b'c', np.arange(3.0)).tobytes().hex())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    here = derive(b"k", "run", 3, b"x").hex(), str(draws(b"k", "y").words(1)[0])
    assert done.stdout.split() == [*here, KeyedGaussian().draw(b"k", b"c", np.arange(3.0)).tobytes().hex()]


def test_participants_are_distinct_ordered_and_uniform():
    silos, key = tuple("abcdefg"), public_key(3)
    drawn = [participants(silos, 3, key, phase, round) for phase in range(1, 8) for round in range(1, 101)]
    for names in drawn:
        assert len(set(names)) == 3 and list(names) == sorted(names)
    pairs = {}
    for names in drawn:
        for i, a in enumerate(names):
            for b in names[i + 1 :]:
                pairs[a, b] = pairs.get((a, b), 0) + 1
    assert len(pairs) == 21
    assert stats.chisquare(list(pairs.values())).pvalue > 1e-4
    assert participants(silos, 7, key, 1, 1) == silos == participants(silos, 9, key, 1, 1)
    again = participants(silos, 3, key, 1, 1)
    assert again == drawn[0]
    others = [participants(silos, 3, public_key(s), 1, 1) for s in range(12)]
    assert len(set(others)) > 4
    assert set(participants(silos, 2, key, 1, 1)) < set(again)


def by_itself(run_key, phase, round, ask, size):
    """A simulated silo's noise: normals of Philox under the MAC of the address, independent of everything else."""
    address = b"".join(number.to_bytes(8, "little") for number in (phase, round, ask))
    return Draws(blake2b(address, key=run_key, digest_size=16).digest()).standard_normal(size)


@pytest.mark.parametrize("silos, size", [(1, 5), (7, 4), (40, 64), (300, 200)])
def test_noise_of_many_silos_in_one_pass_is_that_of_each_alone(silos, size):
    run_keys = [simulation_key(0, 0, f"silo-{at}", "mbsgd") for at in range(silos)]
    for ask in (1, 2):
        context = numbered(round_address(2, 9), ask)
        rows = SeededGaussian().rows([(key, context) for key in run_keys], size)
        for key, row in zip(run_keys, rows, strict=True):
            np.testing.assert_array_equal(row, by_itself(key, 2, 9, ask, size))
            np.testing.assert_array_equal(SeededGaussian().draw(key, context, np.ones(size)), row)


@pytest.mark.parametrize(
    "silos, answers, size", [(1, 3, 5), (7, 1, 4), (40, 2, 64), (3, 2, MOST_AT_ONCE), (5, 50, 410)]
)
def test_noise_drawn_ahead_is_that_of_each_answer(silos, answers, size):
    run_keys = [simulation_key(0, 0, f"silo-{at}", "scaffold") for at in range(silos)]
    ahead, single = (
        NoiseAhead(SeededGaussian(), keys, round_address(2, 9), answers) for keys in (run_keys, run_keys[:1])
    )
    deviation = np.arange(1.0, silos + 1)[:, None]
    for ask in range(1, answers + 2):  # a method that asks once too often is refused after the answer
        found = np.ones((silos, size))
        ahead.add(ask, deviation, found)
        for at in {0, silos - 1}:
            alone = by_itself(run_keys[at], 2, 9, ask, size)
            np.testing.assert_array_equal(found[at], 1.0 + alone * deviation[at])
        context = numbered(round_address(2, 9), ask)
        np.testing.assert_array_equal(
            single.draw(run_keys[0], context, np.zeros(size)), by_itself(run_keys[0], 2, 9, ask, size)
        )
