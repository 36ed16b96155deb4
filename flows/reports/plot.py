"""Plot of a sweep's errors against epsilon or, at a single epsilon, against a varied number."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedcore.directed_rounding import in_full, shown_up
from fedcore.printable import in_drawing
from flows.reports.baseline import constant_answer, measure
from flows.reports.colours import MARKERS, colours, marks
from flows.reports.lines import Line
from flows.reports.settings import shown
from tasks.result_file import write_atomically

MOST_CURVES = 8
"""Beyond this number, curves of a method share a colour, and only the best one is named."""


@dataclass(frozen=True)
class _Curve:
    """Lines with their coordinates on the axis, in order. `faint`: not the method's best setting."""

    label: str
    lines: list[Line]
    places: list[float]
    faint: bool = False


def plot(
    lines: Sequence[Line], path: Path, title: str | None = None, axis: str | None = None, logarithmic: bool = False
) -> None:
    """Draws mean errors with deviations against epsilon or another `axis`, a curve per setting.

    A method has its colour of `flows.reports.colours`; markers and dashes distinguish its settings.

    If all lines are at one epsilon, the axis is the number with the most values in the sweep. `logarithmic`: a
    logarithmic scale for errors, which then fall by orders of magnitude.
    """
    from matplotlib.figure import Figure  # without pyplot, which opens windows and takes half a second to import

    drawn = [line for line in lines if line.error is not None]
    varied = None if axis is not None else _varied_number(drawn)
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    curves = _curves([line for line in drawn if varied is not None or line.place is not None], varied)
    methods = list(dict.fromkeys(line.method for line in lines))
    alike = len(curves) > len({curve.lines[0].method for curve in curves}) and any(curve.faint for curve in curves)
    colour_of = colours(methods)
    without = _without_privacy(drawn) if varied is None else []
    mark_of = marks([curve.label for curve in curves if not curve.faint] + [line.name for line in without])
    for index, curve in enumerate(curves):
        colour = colour_of[curve.lines[0].method]
        # A small shift keeps bars of different methods apart.
        x = [at * 1.02 ** ((methods.index(curve.lines[0].method) if alike else index) - 1.5) for at in curve.places]
        errors = [line.error or 0.0 for line in curve.lines]
        if curve.faint:
            axes.plot(x, errors, color=colour, alpha=0.25, linewidth=1)
            continue
        spread = [line.spread or 0.0 for line in curve.lines]
        marker, dash = mark_of[curve.label]
        label = in_drawing(curve.label)
        axes.errorbar(x, errors, spread, marker=marker, linestyle=dash, capsize=3, color=colour, label=label)
    for line in without:
        colour, (marker, _) = colour_of[line.method], mark_of[line.name]
        label = in_drawing(f"{line.name}, no privacy")
        # Its ends have marks where another setting of the method has such a line, too.
        mark = "" if marker == MARKERS[0] else marker
        axes.axhline(line.error or 0.0, color=colour, linestyle=":", marker=mark, markersize=4, label=label)
    alone = [line.baseline for line in lines if line.baseline is not None]
    if alone:
        level, constant = sum(alone) / len(alone), constant_answer(lines[0])
        axes.axhline(level, color="grey", linestyle="--", linewidth=1, label=in_drawing(f"always {constant}"))
    ticks = {_at(line, varied): _tick(line, varied) for curve in curves for line in curve.lines}
    axes.set_xscale("log")
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.minorticks_off()
    named = axis or (_of_epsilon(lines) if varied is None else f"{varied}, at epsilon {drawn[0].level}")
    axes.set_xlabel(in_drawing(named))
    axes.set_ylabel(in_drawing(f"{measure(lines)} (mean, standard deviation over seeds)"))
    if logarithmic:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    if title is not None:
        axes.set_title(in_drawing(title), fontsize="medium", wrap=True)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    drawing = io.BytesIO()
    figure.savefig(drawing, dpi=130)
    write_atomically(path, drawing.getvalue())


def _of_epsilon(lines: Sequence[Line]) -> str:
    units = " or ".join(dict.fromkeys("record" if line.unit == "records" else "person" for line in lines))
    return f"epsilon of the run, per {units or 'record'} of each silo (replace-one)"


def _varied_number(lines: Sequence[Line]) -> str | None:
    """Key of the axis: in all lines, with most values, all above 0; None for several epsilons."""
    if len({line.level for line in lines}) > 1:
        return None
    values: dict[str, set[Any]] = {}
    for line in lines:
        for key, value in line.settings.items():
            values.setdefault(key, set()).add(value if isinstance(value, int | float) else shown(value))
    numbers = {
        key: len(found)
        for key, found in values.items()
        if len(found) > 1
        and all(type(value) in (int, float) and value > 0 for value in found)
        and all(key in line.settings for line in lines)
    }
    return max(numbers, key=lambda key: numbers[key]) if numbers else None


def _curves(lines: Sequence[Line], varied: str | None) -> list[_Curve]:
    """A curve per method and settings other than the axis.

    Beyond `MOST_CURVES` all of these are faint, and each method has one more curve, of its best setting at each place.
    """
    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(_label(line, varied), []).append(line)
    if len(groups) <= MOST_CURVES:
        return [_Curve(label, group, [_at(line, varied) for line in group]) for label, group in groups.items()]
    faint = [_Curve(label, group, [_at(line, varied) for line in group], True) for label, group in groups.items()]
    best: list[_Curve] = []
    for method in dict.fromkeys(line.method for line in lines):
        mine = [line for line in lines if line.method == method]
        tried = len({label for label, group in groups.items() if group[0].method == method})
        lowest: dict[float, Line] = {}
        for line in sorted(mine, key=lambda line: line.error or 0.0):
            lowest.setdefault(_at(line, varied), line)
        places = sorted(lowest)
        label = f"{method}, best of {tried} settings" if tried > 1 else method
        best.append(_Curve(label, [lowest[at] for at in places], places))
    return faint + best


def _without_privacy(lines: Sequence[Line]) -> list[Line]:
    """Lines without privacy, which have no place on the axis; of many, the best of each method."""
    found = [line for line in lines if line.place is None]
    return found if len(found) <= MOST_CURVES else [line for line in found if line.best or not line.settings]


def _label(line: Line, varied: str | None) -> str:
    return replace(line, settings={key: value for key, value in line.settings.items() if key != varied}).name


def _at(line: Line, varied: str | None) -> float:
    return float(line.settings[varied]) if varied is not None else float(line.place or 0.0)


def _tick(line: Line, varied: str | None) -> str:
    """Label of a place: the value as typed, or the accounted epsilon of a given noise."""
    given = varied is not None or line.at is not None or line.epsilon is not None
    return in_full(_at(line, varied)) if given else shown_up(line.accounted, 3)
