"""Effect of the planned noise on constants computed from a released statistic."""

from __future__ import annotations

import math

from fedcore.algorithms import LargestEigenvalue, SecondMoments
from fedcore.algorithms.statistics.pooled import pooled_noise
from fedcore.data.constants.shrinkage import USUAL_SCALE
from fedcore.planning.plan import Plan


def outlook(statistics: Plan) -> dict[str, float]:
    """Deviations of the noise on the constants, by name.

    `moment_noise`: on each number of the pooled statistic. For columns its unit is half of their range, and the square
    of that for mean squares. `eigenvalue_noise`: on eigenvalues of second moments; for released eigenvalues, on their
    mean weighted by records.
    """
    if statistics.phases[0].question.kind in LargestEigenvalue.asks:
        return {"eigenvalue_noise": pooled_noise(statistics)}
    found = {"moment_noise": pooled_noise(statistics)}
    if statistics.phases[0].question.kind in SecondMoments.asks:
        found["eigenvalue_noise"] = eigenvalue_noise(statistics)
    return found


def correlation_noise(statistics: Plan) -> float:
    """Deviation of noise on the correlation, from second moments, of two columns with the usual deviation."""
    return pooled_noise(statistics) * math.sqrt(0.5) / USUAL_SCALE**2


def eigenvalue_noise(statistics: Plan) -> float:
    """Approximate shift of eigenvalues of the pooled second moment by noise: sigma sqrt(2 p), in squared norms.

    sigma is the deviation on diagonal entries of the pooled statistic; other entries have sigma / sqrt(2). So the noise
    is a Gaussian orthogonal ensemble, and sigma sqrt(2 p) is the edge of its spectrum (Wigner's semicircle). Directions
    of less variance are indistinguishable from noise.
    """
    return pooled_noise(statistics) * math.sqrt(2 * features_of(statistics))


def features_of(statistics: Plan) -> int:
    """p of moments of p + p (p + 1) / 2 numbers."""
    return (math.isqrt(8 * statistics.problem.objective.dim + 9) - 3) // 2
