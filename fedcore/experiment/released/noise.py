"""What noise will do to what is computed from a released statistic."""

from __future__ import annotations

import math

from fedcore.algorithms import LargestEigenvalue, SecondMoments
from fedcore.algorithms.statistics.pooled import pooled_noise
from fedcore.data.constants.shrinkage import USUAL_SCALE
from fedcore.planning.plan import Plan


def outlook(statistics: Plan) -> dict[str, float]:
    """By name, what noise will do to the constants: `moment_noise`, its deviation on each number of the pooled
    statistic (of columns in halves of their ranges, and of mean squares in squares of these), and of second moments and
    eigenvalues `eigenvalue_noise` (of these with silos weighed by their records)."""
    if statistics.phases[0].question.kind in LargestEigenvalue.asks:
        return {"eigenvalue_noise": pooled_noise(statistics)}
    found = {"moment_noise": pooled_noise(statistics)}
    if statistics.phases[0].question.kind in SecondMoments.asks:
        found["eigenvalue_noise"] = eigenvalue_noise(statistics)
    return found


def correlation_noise(statistics: Plan) -> float:
    """Deviation of noise on the correlation of two columns whose deviations are as expected, from second moments."""
    return pooled_noise(statistics) * math.sqrt(0.5) / USUAL_SCALE**2


def eigenvalue_noise(statistics: Plan) -> float:
    """About how far noise moves eigenvalues of the pooled second moment: sigma sqrt(2 p), of the squared norm's unit.

    sigma, of the pooled statistic, is that of its diagonal entries; the others have sigma / sqrt(2), so the noise is a
    Gaussian orthogonal ensemble, and sigma sqrt(2 p) the edge of its spectrum (Wigner's semicircle). Directions of less
    variance than that are the noise's own.
    """
    return pooled_noise(statistics) * math.sqrt(2 * features_of(statistics))


def features_of(statistics: Plan) -> int:
    """p of moments of p + p (p + 1) / 2 numbers."""
    return (math.isqrt(8 * statistics.problem.objective.dim + 9) - 3) // 2
