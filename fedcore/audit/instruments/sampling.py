"""Test that a silo draws its samples at the planned rate: binomial, on participations.

Under Poisson sampling each of m canaries takes part in each of R rounds by its own coin. The number of participations
is therefore binomial(m R, rate). Counting them needs the draws: an auditor inside the silo can, the server cannot.
"""

from __future__ import annotations

import math

from scipy import stats

from fedcore.audit.finding import Finding
from fedcore.directed_rounding import shown_up

FACTOR = 2.0
POWER = 0.999


def limits(trials: int, rate: float, false_alarm: float) -> tuple[int, int]:
    """Least and greatest number of participations that pass; at most half of `false_alarm` beyond each.

    Raises ValueError unless trials >= 1, 0 < rate < 1 and 0 < false_alarm < 1.
    """
    if trials < 1 or not 0 < rate < 1 or not 0 < false_alarm < 1:
        raise ValueError(f"{trials} draws at rate {rate} and a false alarm probability of {false_alarm} make no test")
    low = int(stats.binom.ppf(false_alarm / 2, trials, rate))
    high = int(stats.binom.isf(false_alarm / 2, trials, rate))
    return low, high


def power(trials: int, rate: float, factor: float, false_alarm: float) -> float:
    """Probability of an alarm if the true rate is `factor` times the planned one (at most 1)."""
    low, high = limits(trials, rate, false_alarm)
    true = min(1.0, factor * rate)
    return float(stats.binom.cdf(low - 1, trials, true) + stats.binom.sf(high, trials, true))


def trials_needed(rate: float, false_alarm: float, factor: float = FACTOR, target: float = POWER) -> int:
    """A number of draws (canaries times rounds) with at least this power, near the least one.

    The power of a discrete test is not monotone in the draws; that of the result has been computed.
    """
    trials = 1
    while power(trials, rate, factor, false_alarm) < target:
        trials = math.ceil(trials * 1.1)
    return trials


def sampling_rate(participations: int, trials: int, rate: float, false_alarm: float) -> Finding:
    """Tests participations in `trials` = canaries times rounds against the planned rate, two-sided.

    statistic: observed rate over planned rate; threshold: the greatest that passes. Raises ValueError as `limits`, or
    unless 0 <= participations <= trials.
    """
    low, high = limits(trials, rate, false_alarm)
    if not 0 <= participations <= trials:
        raise ValueError(f"{participations} participations in {trials} draws cannot be")
    expected = trials * rate
    sentence = (
        f"canaries took part {participations} times in {trials} draws at a planned rate of {shown_up(rate)}; {low} to "
        f"{high} passes, and a doubled rate would alarm with probability {power(trials, rate, FACTOR, false_alarm):.4f}"
    )
    passed = low <= participations <= high
    return Finding("sampling rate", passed, participations / expected, high / expected, false_alarm, sentence)
