"""One answer's privacy curve delta(epsilon), for each sampling scheme that has a sound one: the only file that asks
dp-accounting, and the only owner of the replace-one convention.

Every curve takes `multiplier` = sigma / sensitivity, where `sensitivity` is the largest change of the answer when one
record is replaced (2 clip / batch for a clipped mean). dp-accounting disagrees with itself here: under REPLACE_ONE its
privacy loss distributions take the noise relative to *half* of that (one record added or removed), its RDP accountant
relative to the whole. Mixed up, the noise is halved in silence; a full batch pins it to the closed Gaussian formula.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import log_ndtr

from fedcore.arrays import Vector

Curve = Callable[[Vector], Vector]
"""delta at each epsilon (any sign, ascending); symmetric: a swap of the two data sets gives the same curve."""


def gaussian(mu: float) -> Curve:
    """The curve of full-batch Gaussian answers whose mu^2 add up to `mu`^2 (Balle and Wang 2018, Theorem 8)."""

    def delta(epsilon: Vector) -> Vector:
        first = np.exp(log_ndtr(mu / 2 - epsilon / mu))
        return np.asarray(first - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)))

    return delta


def poisson(rate: float, multiplier: float) -> Curve:
    """Each record joins the batch by its own coin of probability `rate`; the divisor is a public number.

    Dominating pair: (1-q) N(0, s^2) + q N(+1, s^2) against (1-q) N(0, s^2) + q N(-1, s^2), s = 2 multiplier in units of
    the clipping bound: the pair that dp-accounting takes for REPLACE_ONE.
    """
    # It takes a second to import, and full batches never need it.
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

    loss = GaussianPrivacyLoss(
        2 * multiplier, sensitivity=1.0, sampling_prob=rate, adjacency_type=AdjacencyType.REPLACE,
        log_mass_truncation_bound=-600,
    )  # fmt: skip
    return lambda epsilon: np.asarray(loss.get_delta_for_epsilon(epsilon), dtype=np.float64)


def without_replacement(rate: float, multiplier: float) -> Curve:
    """A batch of fixed size, `rate` = batch / records, drawn without replacement.

    delta(e) = q delta_G(ln(1 + (exp(e) - 1) / q)) for e >= 0, and delta(-e) = 1 - exp(-e) (1 - delta(e)).
    Source: Balle, Barthe and Gaboardi 2018, Theorem 9, as a dominating profile (Zhu, Dong and Wang 2022; specs
    isrl-dp-fl 7.3 and dp-scaffold 5.8). An upper bound: the two orders of a pair are bounded at once, which no pair
    realises. Within 6 % of a concrete attack where multiplier >= 6, within 20 % below.
    """
    whole = gaussian(1 / multiplier)

    def upper(epsilon: Vector) -> Vector:
        # ln(1 + (e^eps - 1)/q), written so that e^eps may overflow.
        amplified = epsilon - np.log(rate) + np.log1p((rate - 1) * np.exp(-epsilon))
        return rate * whole(amplified)

    def delta(epsilon: Vector) -> Vector:
        at = np.abs(epsilon)
        above = upper(at)
        return np.where(epsilon >= 0, above, 1 - np.exp(-at) * (1 - above))

    return delta


SAMPLED: dict[str, Callable[[float, float], Curve]] = {"poisson": poisson, "without-replacement": without_replacement}
"""The sampling schemes whose curve is known to bound what an answer reveals. Sampling with replacement is not there."""
