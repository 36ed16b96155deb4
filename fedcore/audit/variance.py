"""Is there as much noise as planned? A chi-square test on what a known input leaves over.

The residuals of a correct silo, release minus exact mean over planned sigma, are independent standard normals, so
their sum of squares over N numbers is chi-square with N degrees of freedom: exact, no approximation for large N.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from scipy import stats

from fedcore.audit.finding import Finding

RATIO = 0.9
"""The smallest bug that the test is built for: noise of 0.9 times the planned standard deviation."""
POWER = 0.999
"""Probability of an alarm at that bug, with the number of residuals that `residuals_needed` asks for."""


def limits(count: int, false_alarm: float) -> tuple[float, float]:
    """Least and greatest observed over planned sigma that pass, `count` residuals; half of `false_alarm` on each side.

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
    """Tests `residuals` (any shape), each over its planned sigma, for variance one, against less and more noise.

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
