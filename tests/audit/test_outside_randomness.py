"""Bugs of `tests/audit/foreign/` whose noise or samples are not those that are charged, and draws without them."""

from __future__ import annotations

import numpy as np
import pytest

from fedcore.mechanisms import secret_sample
from fedcore.mechanisms.discrete_gaussian import Keystream
from fedcore.mechanisms.gaussian import KeyedGaussian
from tests.audit.outside_bugs import KEYS, planted

pytestmark = pytest.mark.minutes


def context(phase, round, number=1, query=b"q" * 32):
    return b"r" * 32 + np.array([phase, round, number], dtype="<u8").tobytes() + query


def normals(draws=400, size=32):
    """Noise of `draws` rounds, each of a sum of its own (draws, size)."""
    noise = KeyedGaussian()
    return np.array([noise.draw(b"k" * 32, context(1, round), np.full(size, float(round))) for round in range(draws)])


def alike(first, second):
    """True if two (key, context, sum) have one noise."""
    noise = KeyedGaussian()
    return bool((noise.draw(*first).copy() == noise.draw(*second)).all())


def _same(one, other, totals=(1.0, 2.0), keys=(b"k" * 32, b"k" * 32)):
    size = 32
    return lambda Z: alike((keys[0], one, np.full(size, totals[0])), (keys[1], other, np.full(size, totals[1])))


def _kurtosis(Z):
    return float((Z**4).mean() / (Z**2).mean() ** 2)


SHAPES = {
    "half of the noise": lambda Z: Z.std() < 0.55,
    "noise of 85 percent": lambda Z: Z.std() < 0.9,
    "noise of 97 percent": lambda Z: Z.std() < 0.985,
    "noise for one record less": lambda Z: Z.std() < 0.97,
    "last coordinate bare": lambda Z: not Z[:, -1].any(),
    "one coordinate at half": lambda Z: Z[:, 10].std() < 0.6,
    "half-normal coordinate": lambda Z: (Z[:, 0] >= 0).all(),
    "tails cut at two": lambda Z: np.abs(Z).max() <= 2.0,
    "tails cut at three": lambda Z: np.abs(Z).max() <= 3.0,
    "normals of half steps": lambda Z: (np.rint(2.0 * Z) == 2.0 * Z).all(),
    "normals at half precision": lambda Z: (Z.astype(np.float16) == Z).all(),
    "normals at single precision": lambda Z: (Z.astype(np.float32) == Z).all(),
    "uniform noise": lambda Z: np.abs(Z).max() <= np.sqrt(3.0),
    "Laplace noise": lambda Z: _kurtosis(Z) > 5.0,
    "logistic noise": lambda Z: _kurtosis(Z) > 3.7,
    "signs at each eighth coordinate": lambda Z: (np.abs(Z[:, ::8]) == 1.0).all(),
    "noise on a sphere": lambda Z: np.allclose(np.linalg.norm(Z, axis=1), np.sqrt(Z.shape[1])),
    "noise centred": lambda Z: np.allclose(Z.sum(axis=1), 0.0),
    "noise half common": lambda Z: np.var(Z[:, 1:17] - Z[:, 16:]) < 1.2,
    "noise a sixth common": lambda Z: np.var(Z[:, 1:17] - Z[:, 16:]) < 1.8,
    "noise of neighbours": lambda Z: np.allclose(Z[:, ::2].sum(axis=1), Z[:, 1::2].sum(axis=1)),
    "noise of two rounds alike": _same(context(1, 2), context(1, 3)),
    "noise of two rounds opposed": lambda Z: np.allclose(Z[1::2][:100], -Z[2::2][:100]),
    "each tenth round alike": _same(context(1, 10), context(1, 20)),
    "noise of a turn alike": _same(context(1, 1, 1), context(1, 1, 2)),
    "noise of phases alike": _same(context(1, 4), context(2, 4)),
    "noise from public numbers": _same(context(1, 1), context(1, 1), keys=(b"k" * 32, b"j" * 32)),
    "key of sixteen bits": lambda Z: len(np.unique(normals(2000, 1))) < 2000,
    "key of eight bits": lambda Z: len(np.unique(Z[:, 0])) <= 256,
    "noise not keyed by the sum": _same(context(1, 1), context(1, 1)),
    "noise keyed by a rounded sum": _same(context(1, 1), context(1, 2), totals=(1.0, 1.0001)),
}


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_normals_are_not_those_that_are_charged(name):
    with planted(KEYS[name]):
        assert SHAPES[name](normals())
    with planted(None):
        assert not SHAPES[name](normals())


def samples(draws=3000, records=20):
    """Membership in Poisson samples at a rate of 1/4, and in samples of 6 (draws, records) each."""
    coins, fixed = np.zeros((2, draws, records), dtype=bool)
    for number in range(draws):
        coins[number, secret_sample.poisson_sample(Keystream(number.to_bytes(32, "little")), 0.25, records)] = True
        fixed[number, secret_sample.fixed_size_sample(Keystream(number.to_bytes(32, "big")), 6, records)] = True
    return coins, fixed


def _streams(one, other, keys=(b"k" * 32, b"k" * 32)):
    def same(coins, fixed):
        first, second = (secret_sample.sample_stream(key, at) for key, at in zip(keys, (one, other), strict=True))
        return bool((first.words(8) == second.words(8)).all())

    return same


WHO = {
    "rate half as large again": lambda coins, fixed: coins.mean() > 0.35,
    "rate a tenth larger": lambda coins, fixed: coins.mean() > 0.265,
    "everybody in the sample": lambda coins, fixed: coins.all(),
    "first quarter at twice the rate": lambda coins, fixed: coins[:, :5].mean() > 0.45,
    "one coin for two": lambda coins, fixed: (coins[:, ::2] == coins[:, 1::2]).all(),
    "one coin for all": lambda coins, fixed: (coins == coins[:, :1]).all(),
    "coins of a byte": lambda coins, fixed: coins.mean() > 0.2545,
    "one of each stratum": lambda coins, fixed: (coins.sum(axis=1) == 5).all(),
    "one more in a fixed sample": lambda coins, fixed: (fixed.sum(axis=1) == 7).all(),
    "window for a sample": lambda coins, fixed: np.abs(np.diff(fixed.astype(int), axis=1)).sum(axis=1).max() <= 2,
    "sample with replacement": lambda coins, fixed: fixed.sum(axis=1).min() < 6,
    "first place always in": lambda coins, fixed: fixed[:, 0].all(),
    "guarded sample half as large again": lambda coins, fixed: (fixed.sum(axis=1) == 9).all(),
    "one sample for all rounds": _streams(context(1, 1), context(1, 9)),
    "one sample for two rounds": _streams(context(1, 2), context(1, 3)),
    "one sample for ten rounds of turns": _streams(context(1, 11), context(1, 19)),
    "samples of run and address": _streams(context(1, 1), context(1, 1), (b"k" * 32, b"j" * 32)),
    "guarded samples of rounds alike": _streams(context(1, 1), context(1, 9)),
    "samples of eight bits": lambda coins, fixed: (
        len({int(secret_sample.sample_stream(b"k" * 32, context(1, round)).words(1)[0]) for round in range(600)}) <= 256
    ),
}


@pytest.mark.parametrize("name", sorted(WHO))
def test_samples_are_not_those_that_are_charged(name):
    with planted(KEYS[name]):
        assert WHO[name](*samples())
    with planted(None):
        assert not WHO[name](*samples())
