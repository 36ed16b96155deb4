"""Simulated silos made from a public seed, and the public test set that none of them holds.

Every random stream has a fixed purpose and, where it belongs to a silo, that silo's index: a silo's records
do not depend on how many silos there are. Whoever changes what is made must raise VERSION.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import InputError

VERSION = 1
"""Part of the recipe, so that changed code makes a new data set."""

_COMMON, _SILO, _SILO_TEST, _DIGITS = 101, 102, 103, 104  # purposes of random streams; none is 0

DIGIT_CLASS_COUNTS = (178, 182, 177, 183, 181, 182, 181, 179, 174, 180)
"""Images of each digit in scikit-learn's `load_digits`."""

_DIGIT_PAIRS = tuple((odd, even) for odd in (1, 3, 5, 7, 9) for even in (0, 2, 4, 6, 8))


@dataclass(frozen=True, eq=False)
class Table:
    """Raw records: `features` float64 (n, d) and `labels` int64 (n,), 0 or 1."""

    features: NDArray[np.float64]
    labels: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Generated:
    """Silos by name, in order, and the public test set, with the names of their columns."""

    features: tuple[str, ...]
    label: str
    silos: dict[str, Table]
    test: Table


def digits(test_fraction: float, seed: int) -> Generated:
    """1,797 images of digits (scikit-learn, pixels / 16, d = 64), odd as 1, in silos `o1e0` to `o9e8`.

    First `test_fraction` of the images, stratified by digit, becomes the test set. Of the rest, silo (o, e)
    holds one fifth of digit o and one fifth of digit e, sizes differing by at most one: every image is in one
    place. Raises InputError if `test_fraction` leaves the test set or a silo empty.
    """
    from sklearn.datasets import load_digits

    tests = _digit_test_counts(test_fraction)
    images, digit = load_digits(return_X_y=True)
    rng = _stream(seed, _DIGITS)
    test_rows: list[NDArray[np.int64]] = []
    parts: list[list[NDArray[np.int64]]] = []
    for label, held_out in enumerate(tests):
        rows = rng.permutation(np.flatnonzero(digit == label))
        test_rows.append(rows[:held_out])
        parts.append(np.array_split(rows[held_out:], 5))

    def table(rows: NDArray[np.int64]) -> Table:
        rows = np.sort(rows)
        return Table(np.ascontiguousarray(images[rows] / 16.0), (digit[rows] % 2).astype(np.int64))

    silos = {
        f"o{odd}e{even}": table(np.concatenate([parts[odd][even // 2], parts[even][odd // 2]]))
        for odd, even in _DIGIT_PAIRS
    }
    names = tuple(f"pixel_{row}_{column}" for row in range(8) for column in range(8))
    return Generated(names, "odd", silos, table(np.concatenate(test_rows)))


def digit_silo_sizes(test_fraction: float) -> dict[str, int]:
    """Records of each silo of `digits`, by name and in order, without loading an image; no seed matters."""
    tests = _digit_test_counts(test_fraction)
    train = [count - held_out for count, held_out in zip(DIGIT_CLASS_COUNTS, tests, strict=True)]

    def share(digit: int, part: int) -> int:
        return train[digit] // 5 + (part < train[digit] % 5)

    return {f"o{odd}e{even}": share(odd, even // 2) + share(even, odd // 2) for odd, even in _DIGIT_PAIRS}


def synthetic(
    silos: int, records: int, features: int, heterogeneity: float, test_records: int, seed: int
) -> Generated:
    """Logistic data: silo l has x = m_l + N(0, I) in R^features and P(label 1) = sigmoid(<w_l, x>).

    m_l = heterogeneity N(0, I) / sqrt(features); w_l = w_0 + heterogeneity N(0, I), w_0 ~ N(0, I) common to
    all. Each silo `silo-000`, ... holds `records`; the test set takes as many (give or take one) from the
    distribution of each silo, drawn afresh.
    """
    d = features
    common = _stream(seed, _COMMON).standard_normal(d)
    tables: dict[str, Table] = {}
    tests: list[Table] = []
    for index, name in enumerate(synthetic_silo_names(silos)):
        rng = _stream(seed, _SILO, index)
        mean = heterogeneity * rng.standard_normal(d) / np.sqrt(d)
        weights = common + heterogeneity * rng.standard_normal(d)
        tables[name] = _draw(rng, records, mean, weights)
        share = test_records // silos + (index < test_records % silos)
        tests.append(_draw(_stream(seed, _SILO_TEST, index), share, mean, weights))
    test = Table(np.concatenate([t.features for t in tests]), np.concatenate([t.labels for t in tests]))
    return Generated(tuple(f"x{j}" for j in range(d)), "label", tables, test)


def synthetic_silo_names(silos: int) -> tuple[str, ...]:
    return tuple(f"silo-{index:03d}" for index in range(silos))


def _draw(rng: np.random.Generator, n: int, mean: NDArray[np.float64], weights: NDArray[np.float64]) -> Table:
    X = mean + rng.standard_normal((n, len(mean)))
    return Table(X, (X @ weights + rng.logistic(size=n) > 0).astype(np.int64))


def _digit_test_counts(test_fraction: float) -> list[int]:
    """Test images of each digit, by largest remainders: they add up to the fraction of all images."""
    counts = np.array(DIGIT_CLASS_COUNTS)
    total = round(test_fraction * int(counts.sum()))
    quota = counts * (total / counts.sum())
    tests = np.floor(quota).astype(int)
    order = np.argsort(tests - quota, kind="stable")
    tests[order[: total - tests.sum()]] += 1
    if total < 1 or (counts - tests).min() < 5:
        raise InputError(
            f"data.test_fraction = {test_fraction} sets aside {total} of {counts.sum()} images; it must set "
            "aside at least one and leave 5 images of each digit to the silos: choose 0.001 to 0.95"
        )
    return [int(count) for count in tests]


def _stream(seed: int, purpose: int, silo: int | None = None) -> np.random.Generator:
    key = () if silo is None else (silo,)
    return np.random.default_rng(np.random.SeedSequence([seed, purpose], spawn_key=key))
