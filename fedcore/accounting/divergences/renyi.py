"""Renyi divergences of one order: costs under a cap of rule `rdp`, and the order of a cap.

At one order that was fixed before, divergences of mechanisms add up, even if each depends on all earlier answers.
Sources: the Renyi filter (Feldman and Zrnic 2021; Lecuyer 2021) and fully adaptive composition (Whitehouse et al.
2023). Each number here is at least the largest over neighbours and both directions, and rounded up.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import log_ndtr, logsumexp

from fedcore.accounting.events import gaussian_delta, is_number

FORMULA = 1
"""Version of these formulas: stored with every number, and raised where any number changes."""
ORDERS = tuple(1 + 2 ** (power / 8) for power in range(-48, 81))
"""Orders of accounts; an account takes one for life."""
_UP = 1 + 2.0**-40
"""Factor for the rounding of sums and products of floats."""
_ROUNDED = 1e-11
"""Least allowance for rounding on the logarithm of an integral."""
_UNIT = 2.0**-53
_MOST_POINTS = 2**20
_PANELS = 2**13
_LEAST = 1e-60
"""Divergence of all records below which squares of the noise might overflow."""
_LARGEST = 600.0
"""Exponent beyond which a sample is charged as all records: no cap admits either."""


def implied_order(epsilon: float, delta: float) -> float:
    """The order with the most room for full batches under a cap; a function of epsilon and delta alone.

    Raises ValueError unless both are positive and delta is below 1.
    """
    sound = is_number(epsilon) and is_number(delta) and epsilon > 0 and 0 < delta < 1
    _check(sound, f"no cap has epsilon {epsilon} at delta {delta}")
    return max(ORDERS, key=lambda order: (epsilon - conversion(order, delta)) / order)


def conversion(order: float, delta: float) -> float:
    """c of epsilon = divergence + c at `delta` (Canonne, Kamath and Steinke 2020, Proposition 12).

    The share of delta that discrete noise needs is subtracted: any run may have some.
    Raises ValueError unless 1 < order < inf and 0 < delta < 1.
    """
    check_order(order)
    _check(0 < delta < 1, f"delta = {delta} must lie strictly between 0 and 1")
    left = gaussian_delta(delta, "discrete-gaussian")
    return math.log1p(-1 / order) - math.log(left * order) / (order - 1)


def check_order(order: Any) -> None:
    """Raises ValueError unless the order is a finite number above 1."""
    _check(is_number(order) and 1 < order < math.inf, f"{order} is no order of a Renyi divergence")


def full(order: float, mu_squared: float) -> float:
    """Divergence of full batches whose mu^2 add up to `mu_squared`; a bound for samples."""
    check_order(order)
    _check(mu_squared >= 0, f"mu^2 = {mu_squared} must be at least 0")
    return order * mu_squared / 2 * _UP


@lru_cache(maxsize=4096)
def sampled(order: float, sampling: str, rate: float, multiplier: float) -> float:
    """Divergence of one answer about a secret sample.

    `multiplier`: noise over sensitivity, as in `loss_curves`.
    Never more than of an answer about all records. Raises ValueError for a sampling without a bound here
    (with-replacement among them), a rate outside (0, 1], and a multiplier that is no positive number.
    """
    check_order(order)
    sound = isinstance(sampling, str) and sampling in _SAMPLED and is_number(rate) and is_number(multiplier)
    sound = sound and 0 < rate <= 1 and 0 < multiplier < math.inf
    _check(sound, f"no Renyi divergence is known here for sampling {sampling}, rate {rate}, multiplier {multiplier}")
    inverse = 1.0 / multiplier
    whole = full(order, inverse * inverse)
    if rate == 1 or not _LEAST < whole < math.inf:
        return whole
    found = _SAMPLED[sampling](order, rate, multiplier) / (order - 1) * _UP
    return min(whole, found) if found >= 0 else whole  # NaN takes the else branch


def _poisson(order: float, rate: float, multiplier: float) -> float:
    """Logarithm of the integral of P^order Q^(1-order), rounded up; infinite if it needs too many points.

    Worst pair, in units of the clipping bound with s = 2 multiplier: P = (1-q) N(0, s^2) + q N(1, s^2); Q the same with
    -1. The two directions are mirror images. The integral is a sum of trapezoids of width h.

    The integrand f has no singularity in a strip of half-width a = pi s min(1, s/2). There

        |f(x + iy)| <= 2^((order-1)/2) e^(y^2/(2 s^2)) f(x).

    The relative error of the trapezoids is therefore at most

        2^((order+1)/2) e^(a^2/(2 s^2)) / (e^(2 pi a/h) - 1) <= e^-42.

    Outside [-1 - ks, order + 1 + ks] f is at most (1-q)^(1-order) e^((order^2-order)/(2 s^2)) times a normal density's
    tail: 3e-20 in all.
    """
    s = 2 * multiplier
    a = math.pi * s * min(1.0, s / 2)
    raised = (order * order - order) / (2 * s * s)
    k = math.sqrt(2 * (46 + raised - (order - 1) * math.log1p(-rate)))
    strip = (order + 1) / 2 * math.log(2) + (a / s) ** 2 / 2
    h = min(a / 8, 2 * math.pi * a / (42 + strip))
    low, high = -1 - k * s, order + 1 + k * s
    points = (high - low) / h
    if not points < _MOST_POINTS:
        return math.inf
    x = low + h * np.arange(math.ceil(points) + 1)
    of_none, of_record, square = math.log1p(-rate), math.log(rate), 2 * s * s
    first = np.logaddexp(of_none, of_record + (2 * x - 1) / square)
    second = np.logaddexp(of_none, of_record - (2 * x + 1) / square)
    normal = -x * x / square - math.log(s * math.sqrt(2 * math.pi))
    each = normal + order * first - (order - 1) * second
    found = float(logsumexp(each)) + math.log(h)
    # The rounding error of each exponent, weighted by its share of the integral.
    size = np.abs(normal) + order * np.abs(first) + (order - 1) * np.abs(second) + (np.abs(x) + 1) / (s * s) * order
    rounded = 8 * _UNIT * float(np.exp(each - each.max()) @ size / np.exp(each - each.max()).sum())
    return max(found, 0.0) + _ROUNDED + rounded


def _without_replacement(order: float, rate: float, multiplier: float) -> float:
    """Logarithm of the same integral for a sample of fixed size.

    The profile is that of Balle, Barthe and Gaboardi 2018, Theorem 9.
    H(g) is the hockey-stick divergence at g = e^epsilon >= 1 of neighbours in both directions. It is at most D(g) = q
    delta_G(ln(1 + (g-1)/q)), and (Sason and Verdu 2016)

        I = 1 + order (order-1) int_1^inf (g^(order-2) + g^(-order-1)) H(g) dg.

    D is convex in g: on each panel it lies below its chord. The weights lie below their chord where they are convex,
    else below the tangent at the panel's middle; the product of the two lines is integrated exactly. Panels end at T in
    t = ln(1 + (g-1)/q); beyond it delta_G(t) <= exp(-(t/mu - mu/2)^2 / 2), g <= e^t and a normal tail give the bound.
    """
    mu = 1 / multiplier
    steep = max(order - 1, 1.0)
    k = math.sqrt(2 * (46 + steep * (1 + steep) * mu * mu / 2))
    end = mu * mu / 2 + steep * mu * mu + k * mu
    if not max(order, 2.0) * end < _LARGEST:
        return math.inf
    t = np.linspace(0.0, end, _PANELS + 1)
    g = 1 + rate * np.expm1(t)
    curve = np.exp(log_ndtr(mu / 2 - t / mu))
    # A difference of two nearly equal numbers: their rounding errors are added.
    profile = rate * (np.maximum(curve - np.exp(t + log_ndtr(-mu / 2 - t / mu)), 0.0) + 64 * _UNIT * (1 + t) * curve)
    width = rate * np.exp(t[:-1]) * np.expm1(np.diff(t))
    total = sum(_panels(g, width, profile, power) for power in (order - 2, -order - 1))
    beyond = steep * mu * mu / 2 * (1 + steep) + math.log(2 * rate * rate * mu * math.sqrt(2 * math.pi))
    tail = math.exp(beyond + float(log_ndtr(-k)))
    factor = order * (order - 1)
    return math.log1p(factor * (total + tail) * _UP)


def _panels(g: Any, width: Any, profile: Any, power: float) -> float:
    """An upper bound on the integral of g^power times the profile: a product of lines on each panel."""
    if power * (power - 1) >= 0:
        first, last = g[:-1] ** power, g[1:] ** power
    else:
        middle = g[:-1] + width / 2
        slope = power * middle ** (power - 1) * width / 2
        first, last = middle**power - slope, middle**power + slope
    begins, ends = profile[:-1], profile[1:]
    return float((width / 6 * (first * (2 * begins + ends) + last * (begins + 2 * ends))).sum())


_SAMPLED = {"poisson": _poisson, "without-replacement": _without_replacement}


def _check(sound: bool, sentence: str) -> None:
    if not sound:
        raise ValueError(sentence)
