"""Published values of a figure, from the results of its finished runs."""

from __future__ import annotations

from collections.abc import Sequence

from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.result import RunResult
from fedcore.home import Home
from studies.figures.along import cost_curves
from studies.figures.curves import CurvesConfig, curves, panel_name
from studies.figures.formats import place_text, printed
from studies.figures.paper_table import TableConfig, table_cells
from studies.figures.points import EPSILON, points
from studies.results.derived import curve_differences, point_differences, point_gaps
from studies.results.measured import Measured, Place, mean_of
from studies.study import FigureConfig

Trial = tuple[int, int | None, float]
"""Seed, repetition (None: the mean over all repetitions) and value."""


def measured(
    home: Home, figure: FigureConfig, cells: Sequence[ExperimentConfig], results: Sequence[RunResult]
) -> list[Measured]:
    """The values of a figure: trials, then the mean, place by place, then what follows from trials of several curves.

    `results` are those of `cells`, in their order. Raises InputError for results that do not make the figure.
    """
    if figure.table is not None:
        return _of_table(figure.name, figure.table, cells, results)
    if figure.curves:
        return [each for plotted in figure.curves for each in _of_curves(home, figure.name, plotted, cells, results)]
    return [*_of_points(home, figure, cells, results), *_of_whole_runs(home, figure, cells, results)]


def _of_points(
    home: Home, figure: FigureConfig, cells: Sequence[ExperimentConfig], results: Sequence[RunResult]
) -> list[Measured]:
    found, made = [], points(cells, results, figure.points, home)
    for point in made:
        place = Place(figure.name, point.metric, point.method, "", point.against, place_text(point.at))
        found += _with_mean(place, [(seed, None, error) for seed, error in point.by_seed.items()])
    if figure.baseline is not None:
        found += point_differences(figure.name, made, figure.baseline)
    return found + point_gaps(figure.name, made) if figure.points.compared else found


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
    found, made = [], curves(home, config, cells, results)
    for curve in made:
        place = Place(figure, config.metric, curve.label, panel_name(curve.panel))
        found += _with_mean(place, [(seed, run, end) for (seed, run), end in curve.by_seed.items()])
    return found + curve_differences(figure, config, made)


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
    mean = mean_of(place, place.measure, [value for _, _, value in trials])
    return [*(Measured(place, printed(place.measure, value), seed, run) for seed, run, value in trials), mean]
