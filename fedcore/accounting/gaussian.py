"""Privacy curve of Gaussian mechanisms in closed form.

Full-batch Gaussian answers with sensitivities s_r and noise sigma_r compose, adaptively and without loss, to one
Gaussian mechanism with mu^2 = sum (s_r / sigma_r)^2.
Source: Balle and Wang 2018, Theorem 8; Dong, Roth and Su 2022, Corollary 3.3 (the specs write it as equation 10.1):

    delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)
"""

from __future__ import annotations

import math
from functools import lru_cache

from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr

_RELATIVE = 1e-13
_STEEP = 1e6
"""Largest mu of the exact search: beyond it exponents near mu^2 / 2 leave too few digits."""


def log_delta(mu: float, epsilon: float) -> float:
    """Natural logarithm of the smallest delta at which a mu-GDP mechanism is (epsilon, delta)-DP.

    `epsilon` >= 0.
    Raises ValueError for a negative mu, and for NaN.
    """
    if not mu >= 0 or math.isnan(epsilon):
        raise ValueError(f"mu = {mu} must be >= 0, and epsilon = {epsilon} a number")
    if mu == 0:
        return -math.inf
    if math.isinf(mu):
        return 0.0
    t, s = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if t > -5:
        # Both terms share the factor phi(t): the difference of Mills ratios keeps its digits where the two
        # probabilities themselves would underflow or cancel.
        root = math.sqrt(0.5)
        mills = math.sqrt(math.pi / 2) * float(erfcx(t * root) - erfcx(s * root))
        if mills <= 0:
            return -math.inf
        return -0.5 * t * t - 0.5 * math.log(2 * math.pi) + math.log(mills)
    first, second = float(log_ndtr(-t)), epsilon + float(log_ndtr(-s))
    return first + math.log1p(-math.exp(second - first))


def delta_of(mu: float, epsilon: float) -> float:
    """The smallest delta at which a mu-GDP mechanism is (epsilon, delta)-DP."""
    return math.exp(log_delta(mu, epsilon))


@lru_cache(maxsize=1 << 14)
def epsilon_of(mu: float, delta: float) -> float:
    """The smallest epsilon >= 0 at which a mu-GDP mechanism is (epsilon, delta)-DP.

    Infinite for infinite mu.
    For mu > 1e6 an upper bound that exceeds it by less than 1e-4: mu^2/2 + mu sqrt(2 ln(1/delta)). The first term alone
    is at most delta there, since Phi(-x) <= exp(-x^2/2).
    Raises ValueError unless 0 < delta < 1 and mu >= 0.
    """
    _check_delta(delta)
    if not mu >= 0:
        raise ValueError(f"mu = {mu} must be >= 0")
    target = math.log(delta)
    if mu > _STEEP:
        mu = float(mu)
        return mu * mu / 2 + mu * math.sqrt(-2 * target)
    if mu == 0 or log_delta(mu, 0.0) <= target:
        return 0.0
    high = mu * mu / 2 + mu * math.sqrt(-2 * target) + 1e-9
    while log_delta(mu, high) > target:
        high *= 2
    return float(brentq(lambda epsilon: log_delta(mu, epsilon) - target, 0.0, high, xtol=1e-300, rtol=_RELATIVE))


@lru_cache(maxsize=1 << 14)  # the phases of a plan, and the cells of a sweep, repeat a few questions
def mu_of(epsilon: float, delta: float) -> float:
    """The largest mu at which a mu-GDP mechanism is (epsilon, delta)-DP.

    Raises ValueError unless epsilon > 0 and 0 < delta < 1.
    """
    _check_delta(delta)
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon = {epsilon} must be a positive number")
    target = math.log(delta)
    low = high = min(1.0, epsilon)
    while log_delta(low, epsilon) > target:
        low /= 2
    while log_delta(high, epsilon) <= target:
        high *= 2
    root = brentq(lambda mu: max(log_delta(mu, epsilon), -1e300) - target, low, high, xtol=1e-300, rtol=_RELATIVE)
    return float(root) * (1 - 2 * _RELATIVE)


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"delta = {delta} must lie strictly between 0 and 1")
