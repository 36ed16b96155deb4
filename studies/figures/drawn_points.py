"""Points of a figure as a plot and tables: means with intervals, differences from a baseline, accounted epsilons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedcore.directed_rounding import in_full, shown_up
from fedcore.errors import InputError
from flows.reports.plot import plot
from flows.reports.table import markdown_table
from studies.figures.comparisons import Ranking, comparisons, rankings, rankings_table
from studies.figures.formats import printed
from studies.figures.least_loss import NOT_PRIVATE
from studies.figures.points import EPSILON, Point, PointsConfig, last_part
from studies.figures.trials import paired_differences
from tasks.result_file import jsonable, write_atomically

_AS_TARGETED = 1e-3  # relative deviation from the target up to which an accounted epsilon is not shown


def draw_points(
    folder: Path, figure: PointsConfig, title: str, baseline: str | None, made: Sequence[Point]
) -> list[Ranking]:
    """Writes plot.png, table.json and table.md into the folder, and comparisons.json if all pairs are compared.

    Returns the rankings of these comparisons. Raises InputError for an incomplete baseline.
    """
    folder.mkdir(parents=True, exist_ok=True)
    axis = None if figure.against == EPSILON else last_part(figure.against)
    plot([point.line for point in made], folder / "plot.png", title, axis, figure.metric == "excess loss")
    rows = [
        {
            "method": point.method,
            "epsilon": point.epsilon,
            "epsilon_accounted": point.accounted,
            **({} if point.against == EPSILON else {point.against: point.at}),
            "mean": point.mean,
            "deviation": point.deviation,
            "interval_95": point.interval,
            "errors": point.errors,
            "chosen": point.chosen,
            "seeds": point.seeds,
        }
        for point in made
    ]
    table = {"figure": folder.name, "title": title, "metric": figure.metric, "points": rows}
    table |= {"statement": NOT_PRIVATE} if figure.metric == "excess loss" else {}
    write_atomically(folder / "table.json", jsonable(table))
    text = markdown(made)
    if baseline is not None:
        text += f"\nDifference from {baseline} in the same trials:\n\n{markdown(differences(made, baseline))}"
    found: list[Ranking] = []
    if figure.compared:
        compared = comparisons(made)
        found = rankings(made, compared)
        text += f"\n{rankings_table(found, compared, last_part(figure.against))}"
        listed = {"comparisons": [asdict(each) for each in compared], "standings": [asdict(each) for each in found]}
        write_atomically(folder / "comparisons.json", jsonable(listed))
    write_atomically(folder / "table.md", (text + accounted(made)).encode())
    return found


def differences(made: Sequence[Point], baseline: str) -> list[Point]:
    """Points of the other curves with differences from the baseline at the same place as errors, trial by trial.

    Omits places that the baseline lacks. Raises InputError for other trials, and without a baseline.
    """
    base = {point.at: point.by_seed for point in made if point.method == baseline}
    if not base:
        raise InputError(f"figure: no curve is called {baseline!r}, the baseline; there are {', '.join(_curves(made))}")
    found = []
    for point in made:
        if point.method == baseline or point.at not in base:
            continue
        label = f"{point.method} at {last_part(point.against)} {point.at}"
        errors = paired_differences(point.by_seed, base[point.at], label, baseline)
        found.append(replace(point, errors=errors))
    return found


def markdown(made: Sequence[Point]) -> str:
    """Methods by epsilon: mean over trials, half width of its 95 % interval; without noise last."""
    trials = {curve: max(len(point.errors) for point in made if point.method == curve) for curve in _curves(made)}
    return _table(made, _cell, {curve: str(count) for curve, count in trials.items()})


def accounted(made: Sequence[Point]) -> str:
    """A table of accounted epsilons that differ from their targets; empty if none does."""
    off = [
        point
        for point in made
        if point.epsilon is not None
        and point.accounted is not None
        and abs(point.accounted - point.epsilon) > _AS_TARGETED * point.epsilon
    ]
    if not off:
        return ""
    table = _table(off, lambda point: "-" if point is None else shown_up(point.accounted, 3), None)
    return f"\nAccounted epsilon, where it is not the target:\n\n{table}"


def _curves(made: Sequence[Point]) -> list[str]:
    return list(dict.fromkeys(point.method for point in made))


def _table(made: Sequence[Point], show: Callable[[Point | None], str], trials: dict[str, str] | None) -> str:
    places: list[Any] = [*sorted({point.at for point in made if point.at is not None})]
    places += [None] if any(point.at is None for point in made) else []
    by_place = {(point.method, point.at): point for point in made}
    key = last_part(made[0].against)
    columns = {"method": _curves(made)}
    for place in places:
        head = "no privacy" if place is None else f"{key} {in_full(place)}"
        columns[head] = [show(by_place.get((curve, place))) for curve in _curves(made)]
    if trials is not None:
        columns["trials"] = [trials[curve] for curve in _curves(made)]
    return markdown_table(columns)


def _cell(point: Point | None) -> str:
    if point is None:
        return "-"
    interval = "" if point.interval is None else f" ± {printed(point.metric, point.interval)}"
    return f"{printed(point.metric, point.mean)}{interval}"
