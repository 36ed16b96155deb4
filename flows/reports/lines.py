"""Lines of a table: means over the finished runs of one method at one epsilon with the same settings."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedcore.arrays import canonical_json
from fedcore.directed_rounding import in_full
from fedcore.experiment.result import RunResult, Theorem
from flows.reports.settings import Settings, settings_text

_Key = tuple[str, float | None, float | None, str, float | None, bool]
"""Method, target, given noise multiplier, unit, target for whole silos, and true for shuffled runs."""


@dataclass(frozen=True)
class Line:
    """One method at one epsilon with the same settings, over its seeds.

    `error`: mean error of the kind that `measure` names; for real labels a root mean squared error. `spread`: its
    sample standard deviation, None for one run.
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
    """Noise over sensitivity, if the config gives it instead of a target."""
    measure: str = "test error"
    baseline: float | None = None
    """The same error of a constant answer: the most frequent class, or the mean, of the test data."""
    silo_mean: float | None = None
    """Mean over the seeds of the plain mean of the silos' errors."""
    silo_mean_baseline: float | None = None
    """The same mean for a constant answer at each silo, its most frequent class."""
    unit: str = "records"
    """Unit of privacy: records or persons."""
    auc: float | None = None
    """Area under the ROC curve, mean over the seeds."""
    whole_silo: float | None = None
    """Target of the whole-silo guarantee, for all records of a silo."""
    shuffled: float | None = None
    """Largest epsilon towards an observer of shuffled batches only; None without a shuffler."""
    at: float | None = None
    """Coordinate of the line on an axis other than epsilon."""
    settings: Settings = field(default_factory=dict)
    """Values of the keys that a sweep varies beside epsilon, seed and repetition."""
    best: bool = False
    """True if its error is the lowest of several settings of the method at this epsilon."""

    @property
    def name(self) -> str:
        """The method with its settings, for sentences and legends."""
        return ", ".join(filter(None, (self.method, settings_text(self.settings))))

    @property
    def level(self) -> str:
        """The targets or the given noise as text, or "none"; marked if the run is shuffled."""
        parts = [] if self.epsilon is None else [in_full(self.epsilon)]
        parts += [] if self.multiplier is None else [f"noise {in_full(self.multiplier)}"]
        parts += [] if self.whole_silo is None else [f"whole silo {in_full(self.whole_silo)}"]
        return (", ".join(parts) or "none") + " shuffled" * (self.shuffled is not None)

    @property
    def place(self) -> float | None:
        """Coordinate on the axis; for epsilon the target, else the accounted one; None: no privacy."""
        if self.at is not None:
            return self.at
        return self.epsilon if self.epsilon is not None else self.accounted


def summarise(results: Iterable[RunResult], settings: Mapping[str, Settings] | None = None) -> tuple[Line, ...]:
    """Lines in order of method (as first seen), epsilon (no privacy first) and settings (as first seen).

    `settings`: by run, the values that a sweep varies; means are over runs with the same values.
    """
    settings = settings or {}
    groups: dict[_Key, dict[str, list[RunResult]]] = {}
    for result in results:
        key = (
            result.method,
            result.epsilon_target,
            result.noise_multiplier,
            result.unit,
            result.epsilon_whole_silo_target,
            result.epsilon_shuffled is not None,
        )
        same = canonical_json(settings.get(result.run, {}))
        groups.setdefault(key, {}).setdefault(same, []).append(result)
    order = list(dict.fromkeys(key[0] for key in groups))

    def place(item: tuple[_Key, Any]) -> tuple[Any, ...]:
        method, epsilon, multiplier, _, whole_silo, _ = item[0]
        known = epsilon is not None, epsilon or 0.0, multiplier is not None, -(multiplier or 0.0)
        return order.index(method), *known, whole_silo is None, whole_silo or 0.0

    lines: list[Line] = []
    for _, apart in sorted(groups.items(), key=place):
        lines += _marked([_line(group, settings.get(group[0].run, {})) for group in apart.values()])
    return tuple(lines)


def _line(group: Sequence[RunResult], settings: Settings) -> Line:
    """Line of the runs of one method at one target with the same settings."""
    errors = [result.error for result in group if result.error is not None]
    spent = [result.epsilon_accounted for result in group if result.epsilon_accounted is not None]
    shuffled = [result.epsilon_shuffled for result in group if result.epsilon_shuffled is not None]
    return Line(
        method=group[0].method,
        epsilon=group[0].epsilon_target,
        accounted=max(spent) if spent else None,
        error=_mean(errors),
        spread=statistics.stdev(errors) if len(errors) > 1 else None,
        runs=len(group),
        rounds=max(result.rounds for result in group),
        seconds=statistics.fmean(result.seconds for result in group),
        noise=group[0].noise,
        gradients=max(result.gradient_evaluations for result in group),
        theorem=group[0].theorem,
        multiplier=group[0].noise_multiplier,
        measure=group[0].measure,
        baseline=_mean(result.baseline for result in group),
        silo_mean=_mean(result.silo_mean_error for result in group),
        silo_mean_baseline=_mean(result.silo_mean_majority_error for result in group),
        unit=group[0].unit,
        auc=_mean(result.test_auc for result in group),
        whole_silo=group[0].epsilon_whole_silo_target,
        settings=settings,
        shuffled=max(shuffled, default=None),
    )


def _marked(lines: Sequence[Line]) -> list[Line]:
    """The lines of one method and target. Of several with errors on the same data and silos, the lowest is marked."""
    groups: dict[str, list[tuple[float, int]]] = {}
    for index, line in enumerate(lines):
        chosen = ("algorithm.", "model.")  # a person chooses these; other keys are the conditions of the trial
        where = canonical_json({key: value for key, value in line.settings.items() if not key.startswith(chosen)})
        if line.error is not None:
            groups.setdefault(where, []).append((line.error, index))
    best = {min(found)[1] for found in groups.values() if len(found) > 1}
    return [replace(line, best=index in best) for index, line in enumerate(lines)]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
