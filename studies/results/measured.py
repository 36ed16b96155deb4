"""Measured values of a figure: one for each curve, place and trial, and their means over trials."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.result import RunResult
from fedcore.home import Home
from studies.figures.along import cost_curves
from studies.figures.curves import CurvesConfig, curves, panel_name
from studies.figures.formats import place_text, printed
from studies.figures.paper_table import TableConfig, table_cells
from studies.figures.points import EPSILON, PointsConfig, points
from studies.figures.trials import half_width
from studies.study import FigureConfig

SpreadOf = Literal["", "interval 95%", "simultaneous 95%", "deviation"]
"""Kind of spread: half width of a mean's 95 % interval, of intervals that hold jointly with 95 %, or a deviation."""


@dataclass(frozen=True)
class Place:
    """Place of a value: the curve of a figure, its panel, and the value `at` of the axis's `key`."""

    figure: str
    measure: str
    curve: str
    panel: str = ""
    key: str = ""
    at: str = ""

    @property
    def words(self) -> str:
        """The place as a phrase for messages."""
        parts = [f"{self.figure}: {self.measure} of {self.curve}"]
        parts += [f"in panel {self.panel}"] if self.panel else []
        parts += [f"at {self.key} {self.at}"] if self.key else []
        return " ".join(parts)


@dataclass(frozen=True)
class Measured:
    """One printed value at a place: of one trial (`seed`, `repetition`), or the mean of `trials` with its spread."""

    place: Place
    value: str
    seed: int | None = None
    repetition: int | None = None
    trials: int = 1
    spread: str = ""
    spread_of: SpreadOf = ""

    @property
    def single(self) -> bool:
        """True if the value is of one trial."""
        return self.seed is not None


Trial = tuple[int, int | None, float]
"""Seed, repetition (None: the mean over all repetitions) and value."""


def measured(
    home: Home, figure: FigureConfig, cells: Sequence[ExperimentConfig], results: Sequence[RunResult]
) -> list[Measured]:
    """The values of a figure, from its finished runs: trials first, then the mean, place by place.

    `results` are those of `cells`, in their order. Raises InputError for results that do not make the figure.
    """
    if figure.table is not None:
        return _of_table(figure.name, figure.table, cells, results)
    if figure.curves:
        return [each for plotted in figure.curves for each in _of_curves(home, figure.name, plotted, cells, results)]
    found = _of_points(home, figure.name, figure.points, cells, results)
    return found + _of_whole_runs(home, figure, cells, results)


def _of_points(
    home: Home, figure: str, config: PointsConfig, cells: Sequence[ExperimentConfig], results: Sequence[RunResult]
) -> list[Measured]:
    found = []
    for point in points(cells, results, config, home):
        place = Place(figure, point.metric, point.method, "", point.against, place_text(point.at))
        found += _with_mean(place, [(seed, None, error) for seed, error in point.by_seed.items()])
    return found


def _of_whole_runs(
    home: Home, figure: FigureConfig, cells: Sequence[ExperimentConfig], results: Sequence[RunResult]
) -> list[Measured]:
    """Rounds, numbers sent and gradient evaluations of whole runs: means at each epsilon of `along`."""
    found = []
    for epsilon in figure.along:
        for curve in cost_curves(home, figure.points.metric, epsilon, cells, results):
            costs = {"rounds": curve.rounds, "numbers sent": curve.floats, "gradient evaluations": curve.gradients}
            for measure, along in costs.items():
                place = Place(figure.name, measure, curve.method, "", EPSILON, place_text(epsilon))
                found += [Measured(place, printed(measure, along[-1]), trials=curve.runs)] if along else []
    return found


def _of_curves(
    home: Home, figure: str, config: CurvesConfig, cells: Sequence[ExperimentConfig], results: Sequence[RunResult]
) -> list[Measured]:
    """End values; a plot of the same runs against numbers sent adds none."""
    if config.against == "floats":
        return []
    found = []
    for curve in curves(home, config, cells, results):
        place = Place(figure, config.metric, curve.label, panel_name(curve.panel))
        found += _with_mean(place, [(seed, run, end) for (seed, run), end in curve.by_seed.items()])
    return found


def _of_table(
    figure: str, config: TableConfig, cells: Sequence[ExperimentConfig], results: Sequence[RunResult]
) -> list[Measured]:
    found = []
    methods = ", ".join(dict.fromkeys(cell.algorithm.name for cell in cells))
    for cell in table_cells(config, cells, results):
        panel = f"{config.rows.rpartition('.')[2]} {place_text(cell.row)}"
        place = Place(figure, "accuracy", methods, panel, config.columns, place_text(cell.column))
        values = zip(cell.trials, cell.accuracies, strict=True)
        found += _with_mean(place, [(seed, run, accuracy) for (seed, run), accuracy in values])
    return found


def _with_mean(place: Place, trials: Sequence[Trial]) -> list[Measured]:
    values = [value for _, _, value in trials]
    interval = half_width(values)
    mean = Measured(
        place,
        printed(place.measure, statistics.fmean(values)),
        trials=len(values),
        spread="" if interval is None else printed(place.measure, interval),
        spread_of="" if interval is None else "interval 95%",
    )
    return [*(Measured(place, printed(place.measure, value), seed, run) for seed, run, value in trials), mean]
