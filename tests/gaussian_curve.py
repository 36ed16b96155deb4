"""The privacy curve of a Gaussian mechanism, written anew for the tests: SciPy's normal distribution function alone."""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.special import ndtr


def delta_by_hand(mu: float, epsilon: float) -> float:
    """Balle and Wang 2018, Theorem 8, as published; mu is the sensitivity over sigma."""
    if mu == 0:
        return 0.0
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))


def epsilon_by_hand(mu: float, delta: float) -> float:
    """The least epsilon >= 0 at which the curve is at most `delta`."""
    if delta_by_hand(mu, 0.0) <= delta:
        return 0.0
    high = 1.0
    while delta_by_hand(mu, high) > delta:
        high *= 2
    return brentq(lambda epsilon: delta_by_hand(mu, epsilon) - delta, 0.0, high, xtol=1e-13, rtol=1e-13)


def mu_by_hand(epsilon: float, delta: float) -> float:
    """The largest mu whose curve is at most `delta` at `epsilon`."""
    return brentq(lambda mu: delta_by_hand(mu, epsilon) - delta, 1e-6, 2 * epsilon + 20, xtol=1e-14)
