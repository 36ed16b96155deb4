"""Finished runs as lines of a table: means over the seeds of one method at one epsilon."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fedcore.experiment.result import RunResult, Theorem

_Key = tuple[str, float | None, float | None, str, float | None, bool]
"""Method, target, noise that was given, unit, target for whole silos."""


@dataclass(frozen=True)
class Line:
    """One method at one epsilon, over its seeds. `spread`: sample standard deviation, None for one run.

    `error`: of real labels the root of the mean squared error (`measure` says which).
    """

    method: str
    epsilon: float | None
    accounted: float | None
    error: float | None
    spread: float | None
    runs: int
    rounds: int
    seconds: float
    noise: str
    gradients: int = 0
    theorem: Theorem | None = None
    """None for a method without a theorem."""
    multiplier: float | None = None
    """Noise over sensitivity where that was given."""
    measure: str = "test error"
    baseline: float | None = None
    """The same error without a model: of always answering the most frequent class, or the mean, of the test data."""
    silo_mean: float | None = None
    """Mean over the seeds of the plain mean of the silos' errors."""
    silo_mean_baseline: float | None = None
    """The same of always answering the most frequent class of each silo."""
    unit: str = "records"
    """What epsilon is for."""
    auc: float | None = None
    """Area under the ROC curve, mean over the seeds."""
    whole_silo: float | None = None
    """Target for all records of a silo together."""
    shuffled: float | None = None
    """The largest epsilon towards who sees shuffled batches only; None without a shuffler."""
    at: float | None = None
    """Where the line is on an axis of something else than epsilon."""

    @property
    def level(self) -> str:
        """The target, the noise that was given, or none; and whether it is of shuffled batches."""
        said = [] if self.epsilon is None else [f"{self.epsilon:g}"]
        said += [] if self.multiplier is None else [f"noise {self.multiplier:g}"]
        said += [] if self.whole_silo is None else [f"whole silo {self.whole_silo:g}"]
        return (", ".join(said) or "none") + " shuffled" * (self.shuffled is not None)

    @property
    def place(self) -> float | None:
        """Where the line is on its axis, of epsilons at its target, else at what its noise spends; None: no privacy."""
        if self.at is not None:
            return self.at
        return self.epsilon if self.epsilon is not None else self.accounted


def summarise(results: Iterable[RunResult]) -> tuple[Line, ...]:
    """Lines in order of method (as first seen) and epsilon; no privacy first."""
    groups: dict[_Key, list[RunResult]] = {}
    methods: list[str] = []
    for result in results:
        methods.append(result.method)
        key = (
            result.method, result.epsilon_target, result.noise_multiplier, result.unit,
            result.epsilon_whole_silo_target, result.epsilon_shuffled is not None,
        )  # fmt: skip
        groups.setdefault(key, []).append(result)
    order = list(dict.fromkeys(methods))
    lines = []

    def place(item: tuple[_Key, Any]) -> tuple[Any, ...]:
        method, epsilon, multiplier, _, whole_silo, _ = item[0]
        known = epsilon is not None, epsilon or 0.0, multiplier is not None, -(multiplier or 0.0)
        return order.index(method), *known, whole_silo is None, whole_silo or 0.0

    for (method, epsilon, multiplier, unit, whole_silo, _), group in sorted(groups.items(), key=place):
        errors = [result.error for result in group if result.error is not None]
        spent = [result.epsilon_accounted for result in group if result.epsilon_accounted is not None]
        lines.append(
            Line(
                method=method,
                epsilon=epsilon,
                accounted=max(spent) if spent else None,
                error=_mean(errors),
                spread=statistics.stdev(errors) if len(errors) > 1 else None,
                runs=len(group),
                rounds=max(result.rounds for result in group),
                seconds=statistics.fmean(result.seconds for result in group),
                noise=group[0].noise,
                gradients=max(result.gradient_evaluations for result in group),
                theorem=group[0].theorem,
                multiplier=multiplier,
                measure=group[0].measure,
                baseline=_mean(result.baseline for result in group),
                silo_mean=_mean(result.silo_mean_error for result in group),
                silo_mean_baseline=_mean(result.silo_mean_majority_error for result in group),
                unit=unit,
                auc=_mean(result.test_auc for result in group),
                whole_silo=whole_silo,
                shuffled=max((each for each in (r.epsilon_shuffled for r in group) if each is not None), default=None),
            )
        )
    return tuple(lines)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
