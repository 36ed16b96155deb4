"""Tests that the noise has the planned variance: chi-square tests on residuals of known inputs.

A residual is release minus exact mean over planned sigma. Those of a correct silo are independent standard normals.
Their sum of squares over N numbers is chi-square with N degrees of freedom: exact, no approximation for large N.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from scipy import stats
from scipy.fft import dct

from fedcore.audit.cells import chi_square, least
from fedcore.audit.finding import Finding
from fedcore.audit.releases import SCENES, Releases

RATIO = 0.9
"""Smallest bug that the test is built for: noise of 0.9 times the planned standard deviation."""
POWER = 0.999
"""Probability of an alarm at that bug, with the number of residuals from `residuals_needed`."""


def limits(count: int, false_alarm: float) -> tuple[float, float]:
    """Least and greatest observed over planned sigma that pass; half of `false_alarm` on each side.

    Raises ValueError unless there is a residual and 0 < false_alarm < 1.
    """
    if count < 1 or not 0 < false_alarm < 1:
        raise ValueError(f"{count} residuals at a false alarm probability of {false_alarm} make no test")
    low, high = stats.chi2.ppf(false_alarm / 2, count), stats.chi2.isf(false_alarm / 2, count)
    return math.sqrt(low / count), math.sqrt(high / count)


def power(count: int, ratio: float, false_alarm: float) -> float:
    """Probability of an alarm if the noise has `ratio` times the planned standard deviation."""
    low, high = limits(count, false_alarm)
    scaled = count / ratio**2
    return float(stats.chi2.cdf(low**2 * scaled, count) + stats.chi2.sf(high**2 * scaled, count))


@cache
def residuals_needed(false_alarm: float, ratio: float = RATIO, target: float = POWER) -> int:
    """The least number of residuals (answers times coordinates) whose test has at least this power.

    Raises ValueError unless 0 < ratio < 1 and false_alarm < target < 1.
    """
    if not 0 < ratio < 1 or not false_alarm < target < 1:
        raise ValueError(f"no number of residuals shows a ratio of {ratio} with probability {target}")
    low, high = 0, 1
    while power(high, ratio, false_alarm) < target:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle, ratio, false_alarm) >= target else (middle, high)
    return high


def variance(residuals: np.ndarray, false_alarm: float) -> Finding:
    """Tests `residuals` (any shape), each over its planned sigma, for variance one, two-sided.

    statistic: observed over planned standard deviation; threshold: the least that passes. A residual that is not a
    number is an alarm. Raises ValueError as `limits`.
    """
    count = int(np.size(residuals))
    low, high = limits(count, false_alarm)
    with np.errstate(over="ignore"):
        ratio = math.sqrt(float(np.square(residuals).sum()) / count)
    sentence = (
        f"the noise has {ratio:.4g} times the planned standard deviation over {count} residuals; {low:.4g} to "
        f"{high:.4g} passes, and noise of {RATIO} times the plan would alarm with probability "
        f"{power(count, RATIO, false_alarm):.4f}"
    )
    return Finding("variance", low <= ratio <= high, ratio, low, false_alarm, sentence)


def variance_by_part(releases: Releases, false_alarm: float) -> Finding:
    """Tests the variance of every part by itself: chi-square sums of squares, exact, with Bonferroni.

    Parts are coordinates, phases, coordinates of a phase, rounds, fourths of the plan, runs, and data sets. Others are
    groups by the size of the exact sum and of the sample. Further parts are directions: cosine waves over the
    coordinates, and the exact sum's own. A rotation leaves independent normals independent and normal. Noise that
    coordinates share therefore shows in a wave, even if each coordinate has the planned variance.
    statistic: the least corrected p-value; threshold: the least that passes.
    """
    squares = np.square(releases.residuals)
    rows, coordinates = squares.sum(axis=1), squares.sum(axis=0)
    width = squares.shape[1]
    size = np.linalg.norm(releases.exact, axis=1)

    def by(label: np.ndarray) -> np.ndarray:
        _, at, many = np.unique(label, return_inverse=True, return_counts=True)
        return chi_square(np.bincount(at.ravel(), weights=rows), many * width)

    within = [
        chi_square(squares[releases.phase == one].sum(axis=0), int((releases.phase == one).sum()))
        for one in np.unique(releases.phase)
    ]
    waves = np.square(dct(releases.residuals, axis=1, norm="ortho")).sum(axis=0)
    families = {
        "coordinate": chi_square(coordinates, releases.count),
        "phase": by(releases.phase),
        "phase and coordinate": np.array(within) if len(within) > 1 else np.array([]),
        "round": by(releases.place),
        "fourth of the plan": by(releases.place * 4 // (releases.place.max() + 1)),
        "run of a data set": by(releases.scene * (releases.run.max() + 1) + releases.run),
        "data set": by(releases.scene),
        "fourth of the sizes of samples": by(
            np.searchsorted(np.quantile(releases.size, np.arange(1, 4) / 4), releases.size)
        ),
        "cosine wave": chi_square(waves, releases.count),
        "position among the releases": by(np.arange(releases.count) * 32 // releases.count),
    }
    if releases.ahead and size.any():
        families["eighth of the sizes of sums"] = by(np.searchsorted(np.quantile(size, np.arange(1, 8) / 8), size))
        dots = along(releases)
        families["direction of the exact sum"] = chi_square(np.array([np.square(dots).sum()]), len(dots))
    sentence = "every part of the releases has the planned variance"
    return least("variance by part", families, false_alarm, sentence, {"data set": SCENES})


def along(releases: Releases) -> np.ndarray:
    """Residuals along the direction of each release's nonzero exact sum (P,): standard normals."""
    size = np.linalg.norm(releases.exact, axis=1)
    moved = size > 0
    return np.asarray(np.einsum("ij,ij->i", releases.residuals[moved], releases.exact[moved] / size[moved][:, None]))
