"""Tests that residuals are normal, each release and each number: sizes, tails, gaps near zero.

A sampler that is truncated, heavy-tailed, or silent once in a while can have the planned variance over all releases.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from scipy import stats
from scipy.optimize import minimize_scalar

from fedcore.audit.cells import binomial, chi_square, least
from fedcore.audit.finding import Finding
from fedcore.audit.releases import Releases

NEAR = 1e-6
"""Largest residual that counts as next to no noise, in units of sigma."""
TAILS = (1.0, 2.0, 3.0, 3.5, 4.0, 4.5, 5.0, 7.0)
"""Thresholds, in units of sigma, beyond which residuals are counted."""
SORTED = 2**18
"""Most residuals whose distribution is compared with the normal one."""
FINENESS = 2.0**-20
"""Largest ratio of a grid's step to the noise (`privacy.grid_noise`); so much more may be near zero."""


CUT = 5.0
"""Largest residual whose fourth power is summed; `TAILS` counts those beyond."""


def single_releases(releases: Releases, false_alarm: float) -> Finding:
    """Tests every release by itself: its sum of squares is chi-square.

    Kolmogorov and Smirnov's test (exact p-value) compares all sums of squares with that distribution. It finds noise
    whose size changes from release to release. statistic: the least corrected p-value.
    """
    width = releases.residuals.shape[1]
    rows = np.square(releases.residuals).sum(axis=1)
    families = {
        "release": chi_square(rows, width),
        "distribution of their sums of squares": np.array([_distance(rows, stats.chi2(width))]),
    }
    return least("single releases", families, false_alarm, "every release has noise of the planned size")


def distribution(releases: Releases, false_alarm: float) -> Finding:
    """Tests the distribution of single numbers: distance, fourth powers, tails, values next to zero.

    The distance is Kolmogorov and Smirnov's.
    Counts are binomial. P-values of the distance are exact (Simard and L'Ecuyer), those of fourth powers at least exact
    (Chernoff). On a grid the discrete distribution is within 2^-20 of the normal one, far below what either test finds.
    Values next to zero are counted against a rate that allows for the grid. statistic: the least corrected p-value.
    """
    values = releases.residuals.ravel()
    some = values[:: max(1, len(values) // SORTED)][:SORTED]
    near = 2.0 * NEAR * stats.norm.pdf(0.0) + FINENESS * stats.norm.pdf(0.0)
    columns = (np.abs(releases.residuals) < NEAR).sum(axis=0)
    above = np.array([(values > cut).sum() for cut in TAILS])
    below = np.array([(values < -cut).sum() for cut in TAILS])
    families = {
        "distance from the normal distribution": np.array([_distance(some, stats.norm())]),
        "numbers above": binomial(above, len(values), stats.norm.sf(TAILS)),
        "numbers below minus": binomial(below, len(values), stats.norm.sf(TAILS)),
        "fourth powers": np.array([_fourth_powers(values)]),
        "numbers next to zero": stats.binom.sf(np.array([columns.sum() - 1]), len(values), near),
        "numbers next to zero of coordinate": stats.binom.sf(columns - 1, releases.count, near),
    }
    names = {"numbers above": TAILS, "numbers below minus": TAILS}
    return least("distribution", families, false_alarm, "single numbers of the noise are normal", names)


def _distance(values: np.ndarray, of: Any) -> float:
    """P-value of the largest distance between the distribution of `values` and `of`."""
    many = len(values)
    at = of.cdf(np.sort(values))
    distance = max((np.arange(1, many + 1) / many - at).max(), (at - np.arange(many) / many).max())
    return float(stats.kstwo.sf(distance, many)) if math.isfinite(distance) else math.nan


@cache
def _quadrature() -> tuple[np.ndarray, np.ndarray]:
    """Points of [-CUT, CUT] and the normal mass at each, exact for smooth functions (Gauss, Legendre)."""
    nodes, weights = np.polynomial.legendre.leggauss(400)
    return CUT * nodes, CUT * weights * stats.norm.pdf(CUT * nodes)


def _fourth_powers(values: np.ndarray) -> float:
    """Upper bound on the p-value of the sum of He(r) = r^4 - 6 r^2 + 3, cut to 0 beyond `CUT`.

    Heavy tails move the sum.
    Chernoff's bound: P(S >= s) <= exp(-t s) M(t)^n for every t > 0. M is the moment generating function of He under the
    normal law, here an integral of a smooth function on an interval. Both tails.
    """
    at, mass = _quadrature()

    def he(r: np.ndarray) -> np.ndarray:
        return np.asarray(np.where(np.abs(r) <= CUT, r**4 - 6.0 * r**2 + 3.0, 0.0))

    beyond, many, total = 2.0 * stats.norm.sf(CUT), len(values), float(he(values).sum())
    if not np.isfinite(values).all():
        return math.nan
    sign = 1.0 if total > many * float(mass @ he(at)) else -1.0

    def exponent(t: float) -> float:
        return many * math.log(float(mass @ np.exp(sign * t * he(at))) + beyond) - sign * t * total

    best = minimize_scalar(exponent, bounds=(0.0, 0.1), method="bounded", options={"xatol": 1e-7}).fun
    return min(1.0, 2.0 * math.exp(min(0.0, float(best))))
