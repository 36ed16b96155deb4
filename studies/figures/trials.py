"""Trials (seeds) of a figure: the interval of their mean, differences of two methods trial by trial."""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from scipy import stats

from fedcore.errors import InputError

Seed = TypeVar("Seed", bound=Hashable)


def half_width(values: Sequence[float]) -> float | None:
    """Half width of the 95 % interval of the mean of `values` (Student's t); None for one value."""
    if len(values) < 2:
        return None
    return float(stats.t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5


def deviation(values: Sequence[float]) -> float:
    """Standard deviation of `values`; 0 for one value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def below_zero(differences: Sequence[float]) -> float | None:
    """p-value of a one-sided t-test that the mean of `differences` is not below 0; None for one, or for equal ones."""
    if len(differences) < 2 or statistics.stdev(differences) == 0.0:
        return None
    return float(stats.ttest_1samp(differences, 0.0, alternative="less").pvalue)


def paired_differences(
    values: Mapping[Seed, float], baseline: Mapping[Seed, float], label: str, baseline_label: str
) -> tuple[float, ...]:
    """Each trial's value minus the baseline's in the same trial, in the order of `values`.

    Trials share silos and test records, so differences vary less than values do. Raises InputError, with both labels,
    unless both have the same trials.
    """
    if values.keys() != baseline.keys():
        raise InputError(f"{label} has other trials than the baseline {baseline_label}")
    return tuple(value - baseline[seed] for seed, value in values.items())
