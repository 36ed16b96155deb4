"""Points of a figure: errors against epsilon or another key, with each trial's hyperparameters, and intervals."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.result import RunResult
from fedcore.home import Home
from fedcore.hyperparameters import Section
from flows.reports.lines import Line
from flows.reports.settings import value_at
from studies.figures.least_loss import gap, least_loss
from studies.figures.trials import half_width

Metric = Literal["test error", "silo mean error", "relative RMSE", "excess loss"]

EPSILON = "privacy.epsilon"

_MISSING: dict[Metric, str] = {
    "test error": "a figure of test errors needs public test data of classes",
    "silo mean error": "a figure of silo mean errors needs public test data of each silo",
    "relative RMSE": "a figure of relative RMSE needs public test data of real labels",
    "excess loss": "a figure of excess losses needs training losses: set tracking.simulation_metrics=true",
}
Candidate = list[tuple[RunResult, float]]
"""Runs of one set of hyperparameters in a trial, with their errors."""


class PointsConfig(Section):
    """Metric, axis and curves of a figure of points."""

    metric: Metric = "test error"
    """The drawn error. On public test data: test error, the fraction of wrong classes; silo mean error, its mean over
    silos; relative RMSE, the RMSE divided by that of predicting the mean label. From raw records, NOT PRIVATE: excess
    loss, F - F* of the training loss."""
    against: str = EPSILON
    """The horizontal axis: a key of an experiment, with dots, or "rounds", those of the whole run. Points against
    another key than epsilon share one epsilon."""
    apart: tuple[str, ...] = ()
    """Keys of an experiment, with dots, that distinguish curves of one method."""
    compared: bool = False
    """True compares all pairs of curves at each place, corrected for their number."""


@dataclass(frozen=True)
class Point:
    """A method's errors over trials (seeds) at one value of the axis, each with the trial's own hyperparameters.

    `interval`: half width of the 95 % interval of the mean (Student's t); None for one trial. `chosen`: how often each
    set of hyperparameters was chosen. `epsilon` None: without noise. `at`: the value of the key `against`.
    """

    method: str
    epsilon: float | None
    accounted: float | None
    errors: tuple[float, ...]
    chosen: dict[str, int]
    noise: str
    seconds: float
    rounds: int
    seeds: tuple[int, ...]
    """Seeds of the trials, in the order of `errors`."""
    metric: Metric = "test error"
    against: str = EPSILON
    at: Any = None

    @property
    def mean(self) -> float:
        return statistics.fmean(self.errors)

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.errors) if len(self.errors) > 1 else None

    @property
    def by_seed(self) -> dict[int, float]:
        return dict(zip(self.seeds, self.errors, strict=True))

    @property
    def interval(self) -> float | None:
        return half_width(self.errors)

    @property
    def line(self) -> Line:
        return Line(
            self.method,
            self.epsilon,
            self.accounted,
            self.mean,
            self.deviation,
            len(self.errors),
            self.rounds,
            self.seconds,
            self.noise,
            measure=self.metric,
            baseline=1.0 if self.metric == "relative RMSE" else None,
            at=None if self.against == EPSILON else float(self.at),
        )


def points(
    cells: Iterable[ExperimentConfig], results: Iterable[RunResult], figure: PointsConfig, home: Home | None = None
) -> list[Point]:
    """One point per curve and value of the axis, over the trials.

    `results` are those of `cells`, in their order. `home`: has the cache of least losses, for excess losses.

    The paper's rule: each trial (seed) takes the hyperparameters of method and clip with the lowest training loss,
    averaged over its runs (repetitions). Their mean error is the trial's. The rule reads raw records once per candidate
    and is outside of every epsilon.

    Raises InputError for several candidates without a training loss, and for keys of `apart` that no cell has.
    """
    trials: dict[tuple[str, Any], dict[int, dict[str, Candidate]]] = {}
    known: set[str] = set()
    least: dict[str, float] = {}
    for cell, result in zip(cells, results, strict=True):
        values = _apart(cell, figure.apart)
        known |= values.keys()
        curve = ", ".join([result.method, *(f"{last_part(key)} {_shown(value)}" for key, value in values.items())])
        if figure.against != EPSILON and result.epsilon_target is None:
            curve += ", no privacy"
        mine = trials.setdefault((curve, _place(cell, result, figure.against)), {})
        error = _error(cell, result, figure.metric, home, least)
        mine.setdefault(cell.seed, defaultdict(list))[_candidate(cell)].append((result, error))
    for key in figure.apart:
        if key not in known:
            raise InputError(f"figure: no experiment has a key {key}")
    found = []
    for (curve, place), by_seed in trials.items():
        picked = [min(candidates.items(), key=_loss(candidates)) for candidates in by_seed.values()]
        runs = [run for _, group in picked for run, _ in group]
        spent = [run.epsilon_accounted for run in runs if run.epsilon_accounted is not None]
        found.append(
            Point(
                curve,
                _epsilon(runs, curve),
                max(spent, default=None),
                tuple(statistics.fmean(error for _, error in group) for _, group in picked),
                {key: sum(key == other for other, _ in picked) for key in dict.fromkeys(key for key, _ in picked)},
                runs[0].noise,
                statistics.fmean(run.seconds for run in runs),
                max(run.rounds for run in runs),
                tuple(by_seed),
                figure.metric,
                figure.against,
                place,
            )
        )
    return found


def _apart(cell: ExperimentConfig, keys: Sequence[str]) -> dict[str, Any]:
    """The cell's values of these keys, without keys that it lacks."""
    found = {}
    for key in keys:
        try:
            value = value_at(cell, key)
        except InputError:
            continue
        if value is not None:
            found[key] = value
    return found


def _shown(value: Any) -> str:
    """A value as text; of a section only its values."""
    return " ".join(map(str, value.values())) if isinstance(value, dict) else str(value)


def last_part(key: str) -> str:
    return key.rpartition(".")[2].replace("_", " ")


def _candidate(cell: ExperimentConfig) -> str:
    values = cell.model_dump(mode="json", include={"algorithm": True, "model": {"clip"}})
    clip = {} if values["model"]["clip"] is None else {"clip": values["model"]["clip"]}
    return json.dumps(values["algorithm"] | clip, sort_keys=True)


def _error(cell: ExperimentConfig, run: RunResult, metric: Metric, home: Home | None, least: dict[str, float]) -> float:
    simulated = None if run.simulation is None else run.simulation.get("train_loss")
    values: dict[Metric, float | None] = {
        "test error": run.test_error,
        "silo mean error": run.silo_mean_error,
        "relative RMSE": run.relative_rmse,
        "excess loss": simulated,
    }
    value = values[metric]
    if value is None or (metric == "excess loss" and home is None):
        raise InputError(_MISSING[metric])
    return gap(cell, value, least_loss(home, cell, least)) if metric == "excess loss" and home is not None else value


def _place(cell: ExperimentConfig, run: RunResult, against: str) -> Any:
    if against == EPSILON:
        return run.epsilon_target
    return run.rounds if against == "rounds" else value_at(cell, against)


def _epsilon(runs: Sequence[RunResult], curve: str) -> float | None:
    """The target that the runs of a point share. Raises InputError for several."""
    found = {run.epsilon_target for run in runs}
    if len(found) > 1:
        raise InputError(f"figure: {curve} has runs of several epsilons at one place; draw it against {EPSILON}")
    return found.pop()


def _loss(candidates: Mapping[str, Candidate]) -> Callable[[tuple[str, Candidate]], float]:
    def key(candidate: tuple[str, Candidate]) -> float:
        if len(candidates) == 1:
            return 0.0
        losses = [run.simulation["train_loss"] for run, _ in candidate[1] if run.simulation is not None]
        if len(losses) < len(candidate[1]):
            raise InputError("hyperparameters are chosen by training loss: set tracking.simulation_metrics=true")
        return statistics.fmean(losses)

    return key
