"""One answer's privacy curve delta(epsilon), for each sampling scheme that has a sound one: the only file that asks
dp-accounting, and the only owner of the replace-one convention.

Every curve takes `multiplier` = sigma / sensitivity, where `sensitivity` is the largest change of the answer when one
record is replaced (2 clip / batch for a clipped mean). dp-accounting disagrees with itself here: under REPLACE_ONE its
privacy loss distributions take the noise relative to *half* of that (one record added or removed), its RDP accountant
relative to the whole. Mixed up, the noise is halved in silence; a full batch pins it to the closed Gaussian formula.
"""

from __future__ import annotations

import math
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


def all_of_sample(records: int, rate: float, multiplier: float) -> Curve:
    """Each of `records` joins by its own coin of probability `rate`, and *all* records are replaced; the divisor is a
    public number. `multiplier`: sigma over how far one record that is replaced moves the answer.

    The coins look at no record, so b of them show heads for both data sets alike, b ~ Bin(records, rate), and the
    means of the two answers lie at most b / multiplier deviations apart. By joint convexity of the hockey-stick
    divergence delta(e) <= sum over b of P(b) delta_G(e; b / multiplier), which is the curve of answers that show b,
    too; so it dominates the pair, composes adaptively (Zhu, Dong and Wang 2022), and is symmetric. Ours; elementary.
    Sizes are taken together in groups, at the largest of each, which only raises the curve.
    """
    groups = _sizes(records, rate)

    def delta(epsilon: Vector) -> Vector:
        found = np.zeros_like(epsilon)
        for most, probability in groups:
            curve = gaussian(most / multiplier)(epsilon) if most else -np.expm1(np.minimum(epsilon, 0.0))
            found += probability * curve
        return found

    return delta


def _sizes(records: int, rate: float) -> list[tuple[int, float]]:
    """Groups of the sizes of a Poisson sample: the largest size of each, and its probability; these add up to 1.

    Near the mean a group is a sixth of a standard deviation wide, or one size.
    """
    from scipy.stats import binom

    mean, spread = rate * records, math.sqrt(rate * (1 - rate) * records)
    fine = np.arange(-18, 31) / 6.0
    far = np.array([-40.0, -10.0, -7.0, -5.0, -4.0, 5.5, 6.0, 7.0, 8.0, 10.0, 14.0, 20.0, 40.0])
    ends = np.ceil(mean + spread * np.concatenate([far, fine]))
    last = np.unique(np.clip(np.append(ends, records), 0, records)).astype(np.int64)
    below, above = binom.cdf(last, records, rate), binom.sf(last, records, rate)
    # Differences on the side where they keep their digits.
    low = np.diff(below, prepend=0.0)
    high = -np.diff(above, prepend=1.0)
    probability = np.where(last <= mean, low, high)
    return [(int(most), float(share)) for most, share in zip(last, probability, strict=True) if share > 0]


SAMPLED: dict[str, Callable[[float, float], Curve]] = {"poisson": poisson, "without-replacement": without_replacement}
"""The sampling schemes whose curve is known to bound what an answer reveals. Sampling with replacement is not there."""
