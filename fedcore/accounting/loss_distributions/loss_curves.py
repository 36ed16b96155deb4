"""Privacy curve delta(epsilon) of one answer by sampling scheme; sole owner of replace-one.

Every curve takes `multiplier` = sigma / sensitivity. `sensitivity` is the largest change of the answer when one record
is replaced (2 clip / batch for a clipped mean). The library dp-accounting is inconsistent here. Under REPLACE_ONE its
privacy loss distributions take the noise relative to *half* of that (one record added or removed); its RDP accountant
takes the whole. Mixed up, the noise is halved in silence; a test holds a full batch against the closed Gaussian
formula.

Computed values are above the curve, not near it. Each is a sum of positive terms: a density times a difference of Mills
ratios M(t) = P(X > t) / phi(t). Nothing cancels where delta is small; `_UNITS` covers the rounding of exponents and
ratios. The curve of dp-accounting for samples is up to 6e-5 too low where rates are small. It is 0 where noise is large
and the rate 1e-9. tests/fedcore/accounting/test_loss_curves.py shows both.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import erfcx, log_ndtr

from fedcore.arrays import Vector

Curve = Callable[[Vector], Vector]
"""delta at each epsilon (any sign, ascending); symmetric: equal after a swap of the two data sets."""

_UNITS = 2.0**-49
"""Relative error of an exponent, a Mills ratio or a root of theirs: sixteen roundings."""
_LEAST = 1e-307
"""Floor of every curve: the smallest delta that floating point separates from 0."""


def _mills(t: Vector) -> Vector:
    return np.asarray(math.sqrt(math.pi / 2) * erfcx(t * math.sqrt(0.5)), dtype=np.float64)


def symmetric(above: Curve) -> Curve:
    """The curve that is `above` where epsilon >= 0: delta(-e) = 1 - exp(-e) (1 - delta(e))."""

    def delta(epsilon: Vector) -> Vector:
        at = np.abs(epsilon)
        found = np.clip(above(at), _LEAST, 1.0)
        return np.where(epsilon >= 0, found, np.minimum(1.0, (-np.expm1(-at) + np.exp(-at) * found) * (1 + _UNITS)))

    return delta


def gaussian(mu: float) -> Curve:
    """Curve of full-batch Gaussian answers whose mu^2 add up to `mu`^2 (Balle and Wang 2018, Theorem 8)."""

    def above(epsilon: Vector) -> Vector:
        near, far = epsilon / mu - mu / 2, epsilon / mu + mu / 2
        # Where `near` is below -5 the second term is small against the first, and does not cancel.
        first, second = np.exp(log_ndtr(-near)), np.exp(epsilon + log_ndtr(-far))
        here = np.maximum(near, -5.0)
        ratios = np.exp(-here * here / 2) / math.sqrt(2 * math.pi) * np.stack([_mills(here), _mills(far)])
        split = np.where(near < -5.0, np.stack([first, second]), ratios)
        return split[0] - split[1] + _UNITS * (1 + epsilon + far * far) * split[0]

    return symmetric(above)


def poisson(rate: float, multiplier: float) -> Curve:
    """Curve of an answer about a Poisson sample: each record joins by its own coin of probability `rate`.

    The divisor of the sum is a public number. The dominating pair, with s = 2 multiplier in units of the clipping
    bound, is that of dp-accounting for REPLACE_ONE:

        P = (1-q) N(0, s^2) + q N(+1, s^2); Q = (1-q) N(0, s^2) + q N(-1, s^2).

    The pair's loss grows with x. It is epsilon at

        x = s^2 (epsilon / 2 + arsinh(sinh(epsilon / 2) (1-q)/q exp(1 / (2 s^2)))).

    There the three terms of the density of P - exp(epsilon) Q add up to 0, which leaves differences of Mills ratios.
    """
    scale, log_rate = 2 * multiplier, math.log(rate)
    log_rest = math.log1p(-rate) if rate < 1 else -math.inf
    log_away = log_rest - log_rate + 0.5 / scale**2

    def above(epsilon: Vector) -> Vector:
        with np.errstate(divide="ignore"):
            log_sinh = epsilon / 2 + np.log(-np.expm1(-epsilon) / 2)
            log_less = epsilon + np.log(-np.expm1(-epsilon))
        log_odds = log_away + log_sinh
        small = np.arcsinh(np.exp(np.minimum(log_odds, 0.0)))
        large = np.maximum(log_odds, 0.0)
        large = large + np.log1p(np.sqrt(1 + np.exp(-2 * large)))
        at = scale * (epsilon / 2 + np.where(log_odds > 0, large, small))  # in deviations of the noise
        there, middle, back = at - 1 / scale, at, at + 1 / scale
        # Small noise: the terms lie apart and do not cancel; the ratio of the first would be too large.
        apart = there < -1.0
        direct = np.stack(
            [log_rate + log_ndtr(-there), log_rest + log_less + log_ndtr(-middle), log_rate + epsilon + log_ndtr(-back)]
        )
        first, second, third = np.exp(direct)
        ratio = _mills(np.maximum(there, -1.0))
        half_log = -0.5 * math.log(2 * math.pi)
        densities = np.exp(
            np.stack(
                [log_rest + log_less - middle * middle / 2 + half_log, log_rate + epsilon - back * back / 2 + half_log]
            )
        )
        others = np.stack([_mills(middle), _mills(back)])
        most = np.where(apart, first, ratio * densities.sum(axis=0))
        found = np.where(apart, first - second - third, (densities * (ratio - others)).sum(axis=0))
        return np.maximum(found, 0.0) + _UNITS * (1 + epsilon + back * back) * most

    return symmetric(above)


def without_replacement(rate: float, multiplier: float) -> Curve:
    """Curve of an answer about a batch of fixed size, `rate` = batch / records, drawn without replacement.

    delta(e) = q delta_G(ln(1 + (exp(e) - 1) / q)) for e >= 0, and delta(-e) = 1 - exp(-e) (1 - delta(e)).
    Source: Balle, Barthe and Gaboardi 2018, Theorem 9, as a dominating profile (Zhu, Dong and Wang 2022; specs
    isrl-dp-fl 7.3 and dp-scaffold 5.8). An upper bound: the two orders of a pair are bounded at once, which no pair
    realises. Within 6 % of a concrete attack where multiplier >= 6, within 20 % below.
    """
    whole = gaussian(1 / multiplier)

    def above(epsilon: Vector) -> Vector:
        # ln(1 + (e^eps - 1)/q), written so that e^eps may overflow; rounded down, where the curve is higher.
        near = np.log1p(np.expm1(np.minimum(epsilon, 1.0)) / rate)
        far = epsilon - math.log(rate) + np.log1p((rate - 1) * np.exp(-epsilon))
        return rate * whole(np.where(epsilon < 1.0, near, far) * (1 - _UNITS))

    return symmetric(above)


def all_of_sample(records: int, rate: float, multiplier: float) -> Curve:
    """Curve of an answer about a Poisson sample when *all* records of the silo are replaced.

    Each of `records` joins by its own coin of probability `rate`; the divisor is a public number. `multiplier`: sigma
    over the answer's movement by one replaced record.

    The coins look at no record, so the number b of heads is the same for both data sets, b ~ Bin(records, rate). The
    means of the two answers lie at most b / multiplier deviations apart. By joint convexity of the hockey-stick
    divergence delta(e) <= sum over b of P(b) delta_G(e; b / multiplier). That is also the curve of answers that show b.
    It therefore dominates the pair, composes adaptively (Zhu, Dong and Wang 2022), and is symmetric. Ours; elementary.
    Sizes are grouped at the largest of each group, which only raises the curve.
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
    """Groups of the sizes of a Poisson sample: the largest size of each, and its probability.

    The probabilities add up to 1.
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
"""Curve of each sampling scheme with a known sound bound; sampling with replacement has none."""
