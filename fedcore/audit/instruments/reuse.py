"""Test that every release has noise of its own: no two releases share it.

The exact mean is subtracted from each row, and the planned sigma divided out. For two independent rows the difference
over sqrt(2) has a chi-square sum of squares with d degrees of freedom. A shared noise vector gives zero, up to
rounding.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats
from scipy.spatial.distance import pdist

from fedcore.audit.finding import Finding

ROWS = 400
"""Most rows that are compared with each other, 79,800 pairs."""
COORDINATES = 64
"""Most coordinates of a row that are compared: enough to separate any two vectors."""


def reuse(residuals: np.ndarray, false_alarm: float, step: float = 0.0) -> Finding:
    """Tests the closest pair of `residuals` (A, d), one row per release, each over its planned sigma.

    statistic: least mean square of a pair's difference, in units of the planned 2 sigma^2; threshold: its `false_alarm`
    quantile over all pairs (Bonferroni). `step`: largest movement of a number by a grid. Where chance alone may make
    two rows on a grid equal (one number each), the threshold is 0 and no pair is found. Evenly chosen rows are compared
    if there are more than ROWS. Raises ValueError for fewer than two rows.
    """
    if residuals.ndim != 2 or len(residuals) < 2 or not 0 < false_alarm < 1:
        raise ValueError(f"residuals of shape {residuals.shape} at {false_alarm} make no test of pairs")
    if len(residuals) > ROWS:
        residuals = residuals[np.linspace(0, len(residuals) - 1, ROWS).astype(int)]
    rows = residuals[:, :COORDINATES]
    count, width = rows.shape
    pairs = math.comb(count, 2)
    # Plain differences: the expanded square would round a shared vector to something above the threshold at d = 1.
    statistic = float(pdist(rows, "sqeuclidean").min()) / (2 * width)
    threshold = float(stats.chi2.ppf(false_alarm / pairs, width)) / width
    threshold = max(0.0, math.sqrt(threshold) - math.sqrt(2.0) * step) ** 2  # both of a pair may have moved
    sentence = (
        f"of {pairs} pairs of releases the closest differs by {statistic:.3g} times the planned variance of a "
        f"difference; at least {threshold:.3g} passes, and two releases with the same noise give 0"
    )
    return Finding("reused noise", statistic >= threshold, statistic, threshold, false_alarm, sentence)
