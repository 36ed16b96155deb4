"""25 silos with one odd and one even digit each (Gao, Lowy, Zhou and Wright 2024, section 4).

Unlike there, no image is in two silos: each digit is dealt to the five silos that hold it. Test images, and those for
public constants, are set aside first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcore.draws.stream import Draws
from fedcore.errors import InputError

Rows = NDArray[np.int64]

PAIRS = tuple((odd, even) for odd in (1, 3, 5, 7, 9) for even in (0, 2, 4, 6, 8))


@dataclass(frozen=True)
class Shares:
    """Public numbers of images of each digit 0 to 9 for silos, test data, and public constants."""

    silos: tuple[int, ...]
    test: tuple[int, ...]
    public: tuple[int, ...]

    def silo_sizes(self) -> dict[str, int]:
        """Records of each silo, by name (`o1e0` to `o9e8`) and in order."""

        def share(digit: int, part: int) -> int:
            return self.silos[digit] // 5 + (part < self.silos[digit] % 5)

        return {silo_name(odd, even): share(odd, even // 2) + share(even, odd // 2) for odd, even in PAIRS}


@dataclass(frozen=True, eq=False)
class Division:
    """Ascending rows of each silo by name, of test data, and of public data for constants."""

    silos: dict[str, Rows]
    test: Rows
    public: Rows


def silo_name(odd: int, even: int) -> str:
    return f"o{odd}e{even}"


def shares(
    counts: Sequence[int], test_fraction: float, public_fraction: float = 0.0, per_digit: int | None = None
) -> Shares:
    """Shares of `counts[k]` images of digit k; they are sizes only, so they need no seed.

    `per_digit`: number of images of each digit to use (None: all). Both parts set aside are stratified, by largest
    remainders. Raises InputError naming the key for too few images of a digit, an empty test set, and fewer than 5
    left to the silos.
    """
    used = used_images(counts, per_digit)
    test, public = set_aside(used, test_fraction), set_aside(used, public_fraction)
    if test.sum() < 1 or (used - test).min() < 5:
        raise InputError(
            f"data.test_fraction = {test_fraction} sets aside {test.sum()} of {used.sum()} images; it must set "
            "aside at least one and leave 5 images of each digit to the silos: choose 0.001 to 0.95"
        )
    if (used - test - public).min() < 5:
        raise InputError(
            f"data.pca.fraction = {public_fraction} and data.test_fraction = {test_fraction} set aside "
            f"{public.sum()} + {test.sum()} of {used.sum()} images; they must leave 5 images of each digit to the "
            "silos: choose less"
        )
    return Shares(*(tuple(int(n) for n in part) for part in (used - test - public, test, public)))


def divide(digit: NDArray[np.integer], share: Shares, rng: Draws, homogeneity: float = 0.0) -> Division:
    """Deals the images with digits `digit` (n,), each to one place at most.

    Silo (o, e) gets one fifth of the silos' images of digit o and one fifth of digit e; sizes differ by at most one.
    Then a random part `homogeneity` of each silo's images, rounded, is pooled, shuffled, and dealt back in the same
    numbers (spec localized-isrl-dp, 9).
    """
    test: list[Rows] = []
    public: list[Rows] = []
    parts: list[list[Rows]] = []
    for label in range(10):
        rows = rng.permutation(np.flatnonzero(digit == label))
        ends = np.cumsum([share.test[label], share.public[label], share.silos[label]])
        test.append(rows[: ends[0]])
        public.append(rows[ends[0] : ends[1]])
        parts.append(np.array_split(rows[ends[1] : ends[2]], 5))
    silos = {
        silo_name(odd, even): np.sort(np.concatenate([parts[odd][even // 2], parts[even][odd // 2]]))
        for odd, even in PAIRS
    }
    if homogeneity:
        silos = _pooled(silos, homogeneity, rng)
    return Division(silos, np.sort(np.concatenate(test)), np.sort(np.concatenate(public)))


def _pooled(silos: dict[str, Rows], homogeneity: float, rng: Draws) -> dict[str, Rows]:
    order = {name: rng.permutation(rows) for name, rows in silos.items()}
    ends = {name: round(homogeneity * len(rows)) for name, rows in silos.items()}
    pool = rng.permutation(np.concatenate([order[name][:end] for name, end in ends.items()]))
    back = np.split(pool, np.cumsum(list(ends.values()))[:-1])
    return {
        name: np.sort(np.concatenate([part, order[name][ends[name] :]])) for name, part in zip(silos, back, strict=True)
    }


def used_images(counts: Sequence[int], per_digit: int | None) -> NDArray[np.int64]:
    """Used images of each digit or class: all, or `per_digit`. Raises InputError."""
    used = np.array(counts)
    if per_digit is None:
        return used
    scarce = int(used.argmin())
    if per_digit > used[scarce]:
        kind = "digit" if len(used) == 10 else "class"
        raise InputError(
            f"data.per_digit = {per_digit}, but there are {used[scarce]} images of {kind} {scarce}; "
            f"choose at most {used[scarce]}, or null for all images"
        )
    return np.full(len(used), per_digit)


def set_aside(counts: NDArray[np.int64], fraction: float) -> NDArray[np.int64]:
    """Images of each digit or class to set aside, by largest remainders."""
    total = round(fraction * int(counts.sum()))
    quota = counts * (total / max(1, counts.sum()))
    aside = np.floor(quota).astype(np.int64)
    order = np.argsort(aside - quota, kind="stable")
    aside[order[: total - aside.sum()]] += 1
    return aside
