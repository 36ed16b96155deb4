"""Paired comparisons of methods at each place of a figure, corrected for their number, and the resulting ties."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from fedcore.directed_rounding import in_full
from flows.reports.table import markdown_table
from studies.figures.points import Point
from studies.figures.trials import paired_differences

LEVEL = 0.05
"""Family-wise error level of a figure: the chance that some comparison is decided although the methods are equal."""


@dataclass(frozen=True)
class Comparison:
    """Two methods at one place. `difference`: mean over trials of the first's error minus the second's.

    `interval`: half width of its interval at the corrected level; all intervals of the figure hold jointly with 95 %.
    """

    at: Any
    first: str
    second: str
    difference: float
    interval: float

    @property
    def decided(self) -> bool:
        return abs(self.difference) > self.interval


@dataclass(frozen=True)
class Ranking:
    """The method with the lowest mean error at one place, those tied with it, and those that are worse."""

    at: Any
    best: str
    tied: tuple[str, ...]
    worse: tuple[str, ...]


def comparisons(points: Sequence[Point]) -> list[Comparison]:
    """Comparisons of all pairs of methods at each place where both have results.

    Source: Student's t with Bonferroni's correction for the number of pairs, in trials that share silos, test records
    and seed.
    """
    by_place: dict[Any, list[Point]] = {}
    for point in points:
        by_place.setdefault(point.at, []).append(point)
    pairs = [pair for there in by_place.values() for pair in itertools.combinations(there, 2)]
    found = []
    for first, second in pairs:
        label = f"{first.method} at {first.at}"
        differences = paired_differences(first.by_seed, second.by_seed, label, second.method)
        found.append(
            Comparison(
                first.at,
                first.method,
                second.method,
                float(np.mean(differences)),
                _half_width(differences, LEVEL / len(pairs)),
            )
        )
    return found


def by_pair(compared: Sequence[Comparison]) -> Mapping[tuple[Any, frozenset[str]], Comparison]:
    """Each comparison by its place and its two methods, in either order."""
    return {(each.at, frozenset((each.first, each.second))): each for each in compared}


def rankings(points: Sequence[Point], compared: Sequence[Comparison]) -> list[Ranking]:
    """One ranking per place, in order of the points. A method is worse if its comparison with the best is decided."""
    found = []
    for at in dict.fromkeys(point.at for point in points):
        there = sorted((point for point in points if point.at == at), key=lambda point: point.mean)
        best, *others = [point.method for point in there]
        beaten = {
            each.second if each.first == best else each.first
            for each in compared
            if each.at == at and each.decided and best in (each.first, each.second)
        }
        tied: list[str] = []
        worse: list[str] = []
        for method in others:
            (worse if method in beaten else tied).append(method)
        found.append(Ranking(at, best, tuple(tied), tuple(worse)))
    return found


def rankings_table(found: Sequence[Ranking], compared: Sequence[Comparison], key: str) -> str:
    """Best, tied and worse methods of each place, and the number of comparisons in the correction, as Markdown."""
    gaps = by_pair(compared)

    def behind(ranking: Ranking, method: str) -> str:
        gap = gaps[ranking.at, frozenset((ranking.best, method))]
        return f"{method} +{abs(gap.difference):.2g} ± {gap.interval:.2g}"

    columns = {
        key: ["none" if each.at is None else in_full(each.at) for each in found],
        "lowest": [each.best for each in found],
        "tied with it": [", ".join(behind(each, method) for method in each.tied) or "-" for each in found],
        "worse": [", ".join(behind(each, method) for method in each.worse) or "-" for each in found],
    }
    return (
        f"{markdown_table(columns)}\nDifferences within trials; intervals are corrected for the {len(compared)} "
        f"comparisons of this figure and hold together with {1 - LEVEL:.0%}.\n"
    )


def _half_width(differences: Sequence[float], level: float) -> float:
    """Half width of the mean's interval (Student's t) at 1 - level; infinite for one difference."""
    count = len(differences)
    if count < 2:
        return math.inf
    return float(stats.t.ppf(1 - level / 2, count - 1)) * float(np.std(differences, ddof=1)) / math.sqrt(count)
