"""Is every record clipped? Neighbouring data sets that differ in records with a gradient far beyond the bound.

The released sums of the two differ by the clipped canaries, at most the planned sensitivity each along their direction,
plus the noise of two releases, which is known. Averaged over answers the difference is normal with known variance.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from fedcore.audit.finding import Finding
from fedcore.audit.variance import POWER


def clipping(
    differences: np.ndarray,
    direction: np.ndarray,
    noise: np.ndarray,
    sensitivity: np.ndarray,
    false_alarm: float,
    records: str = "one record",
) -> Finding:
    """Tests the mean shift along the canaries against the planned sensitivity, one-sided.

    `differences` (A, d): released sum with the canaries minus released sum with their opposites, one row per answer;
    `direction` (d,): unit vector along which a canary pushes; `noise` (A,): planned standard deviation of a row per
    coordinate, that of both releases together; `sensitivity` (A,): planned bound on the shift of a row, of all
    differing records; `records`: who they are, for the sentence.
    statistic: shift over sensitivity, averaged over answers by precision; threshold: 1 plus the noise's quantile.
    Raises ValueError on no answer.
    """
    answers = len(differences)
    if answers < 1 or not 0 < false_alarm < 1:
        raise ValueError(f"{answers} answers at a false alarm probability of {false_alarm} make no test")
    precision = np.square(sensitivity / noise)
    spread = 1.0 / math.sqrt(float(precision.sum()))
    statistic = float(((differences @ direction) / sensitivity) @ precision) * spread**2
    threshold = 1.0 + float(stats.norm.isf(false_alarm)) * spread
    seen = threshold + float(stats.norm.ppf(POWER)) * spread
    sentence = (
        f"out of norm, {records} moved the released sums by {statistic:.4g} times the planned sensitivity (mean over "
        f"{answers} answers); up to {threshold:.4g} passes, {seen:.4g} would alarm with probability {POWER}"
    )
    # Not a number must alarm: a comparison with it is false.
    passed = statistic <= threshold
    return Finding(f"clipping, {records}", passed, statistic, threshold, false_alarm, sentence)
