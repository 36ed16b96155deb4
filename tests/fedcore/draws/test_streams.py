"""Uniforms, integers, permutations and coins against integers of Python; elementary functions against mpmath."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedcore.draws import elementary
from fedcore.draws.stream import Draws
from fedcore.mechanisms.secret_sample import fixed_size_sample, poisson_sample
from tests.fedcore.draws import naive

KEYS = st.binary(min_size=16, max_size=16)
KEY = bytes(range(16))


@given(KEYS, st.integers(1, 40), st.integers(-5, 5), st.integers(1, 2**32))
@settings(max_examples=80, deadline=None)
def test_every_number_follows_from_its_word(key, n, low, count):
    words = naive.philox(key, n)
    assert Draws(key).words(n).tolist() == words
    assert Draws(key).random(n).tolist() == [(word >> 11) / 2**53 for word in words]
    assert Draws(key).integers(low, low + count, n).tolist() == [low + (word * count >> 64) for word in words]
    assert Draws(key).permutation(n).tolist() == sorted(range(n), key=lambda at: words[at])
    size = 1 + n // 2
    assert Draws(key).choice(n, size, replace=False).tolist() == sorted(range(n), key=lambda at: words[at])[:size]
    assert Draws(key).choice([7, 8, 9], n, replace=True).tolist() == [7 + (word * 3 >> 64) for word in words]
    assert Draws(key).coins(0.3, n).tolist() == [word < int(0.3 * 2**64) for word in words]
    assert poisson_sample(Draws(key), 0.3, n).tolist() == [at for at in range(n) if words[at] < int(0.3 * 2**64)]


@given(KEYS, st.integers(1, 30))
@settings(max_examples=30, deadline=None)
def test_draws_follow_one_another_and_a_longer_one_begins_as_a_shorter_one(key, n):
    whole, parts = Draws(key).standard_normal(2 * n), Draws(key)
    assert [*parts.standard_normal(n), *parts.standard_normal((1, n)).ravel()] == whole.tolist()


@given(KEYS)
@settings(max_examples=30, deadline=None)
def test_a_sample_of_fixed_size_has_the_smallest_halves_of_words(key):
    halves = [half for word in naive.philox(key, 11) for half in (word & 0xFFFFFFFF, word >> 32)][:21]
    assert fixed_size_sample(Draws(key), 6, 21).tolist() == sorted(sorted(range(21), key=lambda at: halves[at])[:6])


@pytest.mark.parametrize(
    "drawn, law",
    [
        (lambda d, n: d.uniform(-2.0, 3.0, n), stats.uniform(-2, 5)),
        (lambda d, n: d.logistic(n), stats.logistic),
        (lambda d, n: d.gumbel(n), stats.gumbel_r),
        (lambda d, n: d.beta(1.5, 1.5, n), stats.beta(1.5, 1.5)),
        (lambda d, n: d.beta(33.0, 33.0, n), stats.beta(33, 33)),
    ],
)
def test_laws(drawn, law):
    assert stats.kstest(drawn(Draws(KEY), 200_000), law.cdf).pvalue > 1e-4


def test_permutations_are_uniform_and_choices_nested():
    draws, seen = Draws(KEY), np.zeros(24)
    orders = {tuple(order): at for at, order in enumerate(sorted({tuple(p) for p in _orders(4)}))}
    for _ in range(24_000):
        seen[orders[tuple(draws.permutation(4).tolist())]] += 1
    assert stats.chisquare(seen).pvalue > 1e-4
    few, many = (set(Draws(KEY).choice(50, size, replace=False).tolist()) for size in (9, 20))
    assert few < many and len(many) == 20


def _orders(n):
    if n == 0:
        yield []
        return
    for rest in _orders(n - 1):
        for at in range(n):
            yield [*rest[:at], n - 1, *rest[at:]]


@pytest.mark.parametrize(
    "act, message",
    [
        (lambda d: d.integers(0, 0, 3), "integers from 0 to below 0"),
        (lambda d: d.integers(0, 2**32 + 1, 3), "must be 1 to"),
        (lambda d: d.choice(3, 4, replace=False), "a choice of 4 of 3"),
        (lambda d: d.coins(1.0, 3), "coins of rate 1.0"),
        (lambda d: d.beta(2.0, 3.0, 3), "beta"),
        (lambda d: d.beta(0.5, 0.5, 3), "beta"),
    ],
)
def test_what_cannot_be_drawn_is_refused(act, message):
    with pytest.raises(ValueError, match=message):
        act(Draws(KEY))


REALS = st.floats(-700, 700)


def ulps(found, exact):
    return float(abs(mpmath.mpf(float(found)) - exact) / mpmath.mpf(float(np.spacing(abs(float(exact))))))


@given(st.floats(1e-300, 1e300))
@settings(max_examples=300, deadline=None)
def test_logarithms(x):
    found = elementary.log(np.array([x]))[0]
    assert found == naive.log(x)  # the same operations, in floats of Python
    assert found == 0.0 if x == 1.0 else ulps(found, mpmath.log(mpmath.mpf(x))) < 4


@given(REALS)
@settings(max_examples=300, deadline=None)
def test_exponentials_and_softplus(x):
    assert ulps(elementary.exp(np.array([x]))[0], mpmath.exp(mpmath.mpf(x))) < 4
    soft = mpmath.log1p(mpmath.exp(mpmath.mpf(x)))
    assert abs(elementary.softplus(np.array([x]))[0] - soft) <= 4 * 2.0**-53 * max(1.0, abs(x))


@given(st.floats(0, 1, exclude_max=True))
@settings(max_examples=300, deadline=None)
def test_cosines_of_a_turn(v):
    found = elementary.cosine_of_turn(np.array([v]))[0]
    assert abs(found - mpmath.cos(2 * mpmath.pi * mpmath.mpf(v))) <= 4 * 2.0**-53


def test_products_are_sums_in_order():
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((5, 30)), rng.standard_normal((30, 3))
    found = elementary.product(A, B)
    for i in range(5):
        for k in range(3):
            total = float(A[i, 0]) * float(B[0, k])
            for j in range(1, 30):
                total += float(A[i, j]) * float(B[j, k])
            assert found[i, k] == total
