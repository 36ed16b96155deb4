"""Is every record clipped? Two neighbouring data sets whose one differing record has a gradient far beyond the bound.

The released sums of the two differ by the clipped canary, at most the planned sensitivity along its direction, plus
the noise of two releases, which is known. Averaged over answers the difference is normal with known variance.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from fedcore.audit.finding import Finding
from fedcore.audit.variance import POWER


def clipping(
    differences: np.ndarray, direction: np.ndarray, noise: np.ndarray, sensitivity: np.ndarray, false_alarm: float
) -> Finding:
    """Tests the mean shift along the canary against the planned sensitivity, one-sided.

    `differences` (A, d): released sum with the canary minus released sum with its opposite, one row per answer;
    `direction` (d,): unit vector along which the canary pushes; `noise` (A,): planned standard deviation of a row per
    coordinate, that of both releases together; `sensitivity` (A,): planned bound on the shift of a row.
    statistic: mean shift over mean sensitivity; threshold: 1 plus the noise's quantile. Raises ValueError on no answer.
    """
    answers = len(differences)
    if answers < 1 or not 0 < false_alarm < 1:
        raise ValueError(f"{answers} answers at a false alarm probability of {false_alarm} make no test")
    bound = float(np.mean(sensitivity))
    spread = math.sqrt(float(np.square(noise).sum())) / answers / bound
    statistic = float(np.mean(differences @ direction)) / bound
    threshold = 1.0 + float(stats.norm.isf(false_alarm)) * spread
    seen = threshold + float(stats.norm.ppf(POWER)) * spread
    sentence = (
        f"one out-of-norm record moved the released sums by {statistic:.4g} times the planned sensitivity (mean over "
        f"{answers} answers), {threshold:.4g} passes; a shift of {seen:.4g} times would alarm with probability {POWER}"
    )
    # Not a number must alarm: a comparison with it is false.
    return Finding("clipping", statistic <= threshold, statistic, threshold, false_alarm, sentence)
