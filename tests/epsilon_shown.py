"""The epsilon that an attack's successes show: a lower bound by Clopper and Pearson's limits of its two error rates."""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import beta


def epsilon_shown(hits: int, alarms: int, runs: int, delta: float, error: float) -> float:
    """ln((P(hit) - delta) / P(alarm)), not below 0; each probability at its limit, wrong with probability `error`."""
    low = beta.ppf(error, hits, runs - hits + 1) if hits else 0.0
    high = beta.ppf(1 - error, alarms + 1, runs - alarms) if alarms < runs else 1.0
    return max(0.0, math.log(max(low - delta, 1e-300) / high))


def epsilon_of_scores(with_it: np.ndarray, without: np.ndarray, delta: float) -> float:
    """The largest over 19 cuts at quantiles of the scores with the record; each limit wrong with probability 1e-4."""
    return max(
        epsilon_shown(int((with_it >= cut).sum()), int((without >= cut).sum()), len(without), delta, 1e-4)
        for cut in np.quantile(with_it, np.linspace(0.05, 0.95, 19))
    )
