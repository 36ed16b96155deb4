"""Curvature that the noisy messages of two rounds certify, free of charge, from the server's data.

If the mean loss of the records is convex with curvature at most h, gradients at q and q' differ by at most
`h |q - q'|`. A mean message is such a gradient plus noise of known deviation. Where silos or records are drawn, it also
has an error of known bounds. The excess of two messages' difference over quantiles of both, divided by `|q - q'|`, is
at most h except with a known probability.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from scipy.special import chdtri

from fedcore.arrays import Vector
from fedcore.planning.phase import Phase


def message_variance(phase: Phase, places: Iterable[int]) -> float:
    """Variance of the noise on each number of the mean message of the silos at these places.

    `places`: in the problem's list of silos.
    """
    places = list(places)
    weights = phase.weights or (1.0,) * len(phase.shares)
    return math.fsum((weights[at] * phase.shares[at].sigma) ** 2 for at in places) / len(places) ** 2


def sampling_error(phase: Phase, places: Iterable[int], drawn_points: bool, false_alarm: float) -> float:
    """Bound, in norm, on a noiseless mean message less the mean gradient of all records.

    It holds except with probability `false_alarm`. 0 where all silos answer about all of their records. The error of
    drawn records, or of points drawn for each (`drawn_points`), and that of drawn silos are bounded separately.
    """
    places, weights = list(places), phase.weights or (1.0,) * len(phase.shares)
    many, error = len(places), 0.0
    if phase.rate < 1 or phase.schedule.fresh_blocks or drawn_points:
        # A record adds at most w C / (M K), K records of a silo at most w^2 C^2 / (M^2 K) to the variance.
        sizes = [(weights[at] * phase.question.clip / many, phase.shares[at].batch) for at in places]
        variance = math.fsum(length**2 / batch for length, batch in sizes)
        error += _pinelis(variance, max(2.0 * length / batch for length, batch in sizes), false_alarm / 2)
    if many < len(phase.shares):
        variance = phase.question.clip**2 * math.fsum(weight**2 for weight in weights) / len(weights) / many
        error += _pinelis(variance, 2.0 * max(weights) * phase.question.clip / many, false_alarm / 2)
    return error


def _pinelis(variance: float, largest: float, false_alarm: float) -> float:
    """r with P(|sum| >= r) <= `false_alarm` for a sum of independent vectors of mean 0.

    `variance` bounds their summed variance, `largest` their norms. Source: Pinelis 1994, Theorem 3.4, in Bernstein's
    form: `P <= 2 exp(-r^2 / (2 (variance + largest r / 3)))`. It holds without replacement too: its exponential moments
    are convex functions of the sum (Hoeffding 1963, Theorem 4).
    """
    log = math.log(2.0 / false_alarm)
    return largest * log / 3.0 + math.sqrt((largest * log / 3.0) ** 2 + 2.0 * variance * log)


def certified_curvature(
    query_change: Vector, message_change: Vector, variance: float, error: float, false_alarm: float
) -> float:
    """The curvature that a difference of queries and one of mean messages (d,) certify; 0 for none.

    `variance`: of the normal noise on each number of `message_change`. `error`: bound on its further error. Except with
    probability `false_alarm` the curvature between the two queries is at least the result.
    """
    moved = float(np.linalg.norm(query_change))
    if not moved > 0:
        return 0.0
    noise = math.sqrt(variance * float(chdtri(len(query_change), false_alarm)))
    return max(0.0, (float(np.linalg.norm(message_change)) - noise - error) / moved)
