"""Silos of images by similarity gamma: part gamma i.i.d. over classes, the rest from few.

Source: Noble, Bellet, Dieuleveut 2022, section 5 (spec dp-scaffold, 7.2, 7.3 and A11); "the released code" is theirs.
A user draws gamma R of its R images i.i.d. Each is the next unused image of a class drawn uniformly, or of the next
class with images left. Then every user i gets the rest of its images:

- `one-class`: unused images of class i mod classes, fewer if the class runs out, as in the released code;
- `sorted-blocks`: the next ones of all unused images sorted by label.

Images of a class are in random order, so numbers alone decide the split: sizes need labels and no image. Each user sets
its own test images aside, and their union is the public test set. No image is in two places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedcore.data.sources.odd_even import Division, Rows, set_aside, used_images
from fedcore.data.sources.streams import silo_names, stream
from fedcore.errors import InputError
from fedcore.hyperparameters import Count, Real, Section
from fedcore.limits import MOST_SILOS

Rest = Literal["one-class", "sorted-blocks"]
Counts = NDArray[np.int64]

_CLASSES, _IMAGES, _TEST = 107, 108, 109  # purposes of random streams


class SimilarityConfig(Section):
    """Silos by similarity: a part gamma of a silo's images is i.i.d., the rest of few classes."""

    silos: Count = Field(20, ge=1, le=MOST_SILOS)
    records: Count | None = Field(None, ge=3)
    """R: images of each silo before its own split into training and test; null: all images in equal numbers."""
    gamma: Real = Field(0.1, ge=0, le=1)
    """Part of a silo's images whose classes are drawn uniformly; 1: all silos alike."""
    rest: Rest = "one-class"
    """The other images: one-class: those of class i mod classes in silo i, fewer than R if that class runs out;
    sorted-blocks: the next ones of all remaining images, sorted by label."""


@dataclass(frozen=True, eq=False)
class Shares:
    """Public numbers of images of each user.

    `users` (silos, classes): images of each class before the user's own split; `test` (silos,): number of them that
    become test images; `public`: images of each class for public constants, which no user gets.
    """

    users: Counts
    test: Counts
    public: tuple[int, ...]

    def silo_sizes(self) -> dict[str, int]:
        """Training records of each silo, by name and in order."""
        sizes = self.users.sum(axis=1) - self.test
        return dict(zip(silo_names(len(sizes)), sizes.tolist(), strict=True))


def shares(
    counts: Sequence[int],
    how: SimilarityConfig,
    test_fraction: float,
    seed: int,
    public_fraction: float = 0.0,
    per_class: int | None = None,
) -> Shares:
    """Shares of `counts[k]` images of class k, of which `per_class` are used (None: all).

    Images for public constants are set aside first, stratified. Raises InputError naming the key for too few images, an
    empty test set, and a silo with fewer than 2 training records.
    """
    used = used_images(counts, per_class)
    public = set_aside(used, public_fraction)
    users = deal(used - public, user_sizes(int((used - public).sum()), how), how.gamma, how.rest, seed)
    dealt = users.sum(axis=1)
    test = np.array([round(test_fraction * n) for n in dealt.tolist()], dtype=np.int64)
    poor = int((dealt - test).argmin())
    if test.sum() < 1 or dealt[poor] - test[poor] < 2:
        raise InputError(
            f"data.similarity: silo {silo_names(how.silos)[poor]} gets {dealt[poor]} images and trains on "
            f"{dealt[poor] - test[poor]}, and {test.sum()} of all silos' become test data (data.test_fraction = "
            f"{test_fraction}); each silo needs 2 to train on and the test one: choose fewer data.similarity.silos, "
            "other records, or another rest, in which no class runs out"
        )
    return Shares(users, test, tuple(public.tolist()))


def user_sizes(images: int, how: SimilarityConfig) -> list[int]:
    """Images of each user: R, or all images in nearly equal numbers. Raises InputError."""
    if how.records is None:
        return [images // how.silos + (i < images % how.silos) for i in range(how.silos)]
    if how.records * how.silos > images:
        raise InputError(
            f"data.similarity.records = {how.records} for data.similarity.silos = {how.silos} are "
            f"{how.records * how.silos} images, but there are {images}; choose at most {images // how.silos}, or null "
            "for all images"
        )
    return [how.records] * how.silos


def deal(counts: Counts, sizes: Sequence[int], gamma: float, rest: Rest, seed: int) -> Counts:
    """Numbers of images by user and class (users, classes), from `counts` (classes,).

    `sizes`: the users' R, in sum at most that of `counts`; with `one-class` a user may get fewer.
    """
    left, classes = counts.copy(), len(counts)
    users = np.zeros((len(sizes), classes), dtype=np.int64)
    # The guard keeps products such as 0.29 * 100 = 28.999999999999996 from losing an image.
    similar = [int(gamma * size + 1e-9) for size in sizes]
    for i, many in enumerate(similar):
        drawn = stream(seed, _CLASSES, i).integers(0, classes, many)
        counted = np.bincount(drawn, minlength=classes)
        if (counted <= left).all():  # no class runs out, so their order does not matter
            users[i] = counted
            left -= counted
            continue
        for wanted in drawn.tolist():
            k = next(k % classes for k in range(wanted, wanted + classes) if left[k % classes])
            users[i, k] += 1
            left[k] -= 1
    for i, size in enumerate(sizes):
        missing = size - similar[i]
        for k in [i % classes] if rest == "one-class" else range(classes):
            taken = min(missing, int(left[k]))
            users[i, k] += taken
            left[k] -= taken
            missing -= taken
    return users


def divide(labels: NDArray[np.integer], share: Shares, seed: int) -> Division:
    """Divides images with classes `labels` (n,); no image is in two places, rows ascend.

    A user's test images are a random part of its images.
    """
    public: list[Rows] = []
    users: list[list[Rows]] = [[] for _ in share.test]
    for k in range(share.users.shape[1]):
        rows = stream(seed, _IMAGES, k).permutation(np.flatnonzero(labels == k))
        ends = np.cumsum([share.public[k], *share.users[:, k]])
        parts = np.split(rows[: ends[-1]], ends[:-1])
        public.append(parts[0])
        for own, part in zip(users, parts[1:], strict=True):
            own.append(part)
    silos: dict[str, Rows] = {}
    test: list[Rows] = []
    for i, (name, own) in enumerate(zip(silo_names(len(users)), users, strict=True)):
        rows = stream(seed, _TEST, i).permutation(np.concatenate(own))
        test.append(rows[: share.test[i]])
        silos[name] = np.sort(rows[share.test[i] :])
    return Division(silos, np.sort(np.concatenate(test)), np.sort(np.concatenate(public)))
