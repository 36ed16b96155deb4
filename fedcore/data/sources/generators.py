"""Deals images to simulated silos by a public seed; sets aside a public test set.

Every random stream has a fixed purpose, and a silo's stream its index. So a silo's records do not depend on the number
of silos. A change of the generated records must raise VERSION.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcore.data.sources import odd_even, similarity
from fedcore.data.sources.mnist import CLASSES, Flavour, load_images, load_labels
from fedcore.data.sources.similarity import SimilarityConfig
from fedcore.data.sources.streams import stream
from fedcore.data.table import Generated, Table

VERSION = 3
"""Version of the generated records, a part of the recipe: changed code gives a new data set."""

_DIGITS = 104  # purpose of a random stream; others are in synthetic.py

DIGIT_CLASS_COUNTS = (178, 182, 177, 183, 181, 182, 181, 179, 174, 180)
"""Images of each digit in scikit-learn's `load_digits`."""


def digits(test_fraction: float, seed: int, public_fraction: float = 0.0, homogeneity: float = 0.0) -> Generated:
    """1,797 digits (scikit-learn, pixels / 16, d = 64), odd as 1, in silos `o1e0` to `o9e8`.

    First `test_fraction` of the images, stratified by digit, becomes the test set, and `public_fraction` the public
    data for constants. Silo (o, e) gets one fifth of the rest of digit o and one fifth of digit e. Sizes differ by at
    most one, and no image is in two places. Then a part `homogeneity` of each silo's images is pooled and dealt again.
    Raises InputError if a part is empty or too large.
    """
    share = digit_shares(test_fraction, public_fraction)
    images, digit = _load_digits()
    return _odd_even(images, digit, share, 8, seed, homogeneity)


@cache
def _load_digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Images (1797, 64), pixels from 0 to 1, and their digits. A sweep deals the same ones by each of its seeds."""
    from sklearn import datasets

    images, digit = datasets.load_digits(return_X_y=True)
    scaled = images / 16.0
    scaled.flags.writeable = digit.flags.writeable = False
    return scaled, digit


def digit_shares(test_fraction: float, public_fraction: float = 0.0) -> odd_even.Shares:
    """Sizes of the parts of `digits`, without loading an image."""
    return odd_even.shares(DIGIT_CLASS_COUNTS, test_fraction, public_fraction)


def mnist(
    folder: str,
    flavour: Flavour,
    per_digit: int | None,
    test_fraction: float,
    seed: int,
    public_fraction: float = 0.0,
    homogeneity: float = 0.0,
) -> Generated:
    """Images of MNIST or EMNIST (uint8, 0 to 255), odd as 1, dealt like those of `digits`.

    `per_digit`: number of images of each digit, drawn at random (None: all). Raises InputError as `digits` does, and
    for files that are missing or damaged.
    """
    share = mnist_shares(folder, flavour, per_digit, test_fraction, public_fraction)
    images, digit = load_images(folder, flavour), load_labels(folder, flavour)
    return _odd_even(images.reshape(len(images), -1), digit, share, images.shape[2], seed, homogeneity)


def mnist_shares(
    folder: str, flavour: Flavour, per_digit: int | None, test_fraction: float, public_fraction: float = 0.0
) -> odd_even.Shares:
    """Sizes of the parts of `mnist`; reads labels and no image."""
    return odd_even.shares(class_counts(folder, flavour), test_fraction, public_fraction, per_digit)


def class_counts(folder: str, flavour: Flavour) -> list[int]:
    """Images of each class in a folder, by labels. Raises InputError as `load_labels` does."""
    return [int(n) for n in np.bincount(load_labels(folder, flavour), minlength=CLASSES[flavour])]


def similar_digits(how: SimilarityConfig, test_fraction: float, seed: int, public_fraction: float = 0.0) -> Generated:
    """The images of `digits`, dealt by similarity and labelled by digit. Raises InputError."""
    share = similarity.shares(DIGIT_CLASS_COUNTS, how, test_fraction, seed, public_fraction)
    images, digit = _load_digits()
    return _similar(images, digit, share, 8, seed)


def similar_mnist(
    folder: str,
    flavour: Flavour,
    per_class: int | None,
    how: SimilarityConfig,
    test_fraction: float,
    seed: int,
    public_fraction: float = 0.0,
) -> Generated:
    """The images of `mnist`, dealt by similarity and labelled by class. Raises InputError."""
    counts = class_counts(folder, flavour)
    share = similarity.shares(counts, how, test_fraction, seed, public_fraction, per_class)
    images, labels = load_images(folder, flavour), load_labels(folder, flavour)
    return _similar(images.reshape(len(images), -1), labels, share, images.shape[2], seed)


def _odd_even(
    images: NDArray[Any],
    digit: NDArray[np.integer],
    share: odd_even.Shares,
    columns: int,
    seed: int,
    homogeneity: float,
) -> Generated:
    """Images (n, pixels), `columns` in a row, dealt by digit, labelled by parity and digit."""

    def table(rows: NDArray[np.int64]) -> Table:
        labels = digit[rows].astype(np.int64)
        return Table(np.ascontiguousarray(images[rows]), labels % 2, {"digit": labels})

    places = odd_even.divide(digit, share, stream(seed, _DIGITS), homogeneity)
    return _dealt(places, table, images.shape[1], columns, "odd")


def _similar(
    images: NDArray[Any], labels: NDArray[np.integer], share: similarity.Shares, columns: int, seed: int
) -> Generated:
    """Images (n, pixels) of `columns` pixels in a row, dealt by similarity, labelled by class."""

    def table(rows: NDArray[np.int64]) -> Table:
        return Table(np.ascontiguousarray(images[rows]), labels[rows].astype(np.int64))

    return _dealt(similarity.divide(labels, share, seed), table, images.shape[1], columns, "class")


def _dealt(
    places: odd_even.Division, table: Callable[[NDArray[np.int64]], Table], pixels: int, columns: int, label: str
) -> Generated:
    return Generated(
        features=tuple(f"pixel_{k // columns}_{k % columns}" for k in range(pixels)),
        label=label,
        silos={name: table(rows) for name, rows in places.silos.items()},
        test=table(places.test),
        public=table(places.public) if len(places.public) else None,
    )
