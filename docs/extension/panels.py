"""Drawing of a published figure: a panel for each curve, the other curves of the figure grey behind it.

All panels of a figure share their axes. Several figures of one image are blocks of rows, each with an own scale.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.reports.colours import colours

DIFFERENCE = re.compile(r"^(?P<measure>.*), difference from (?P<baseline>.*)$")
NO_NOISE = "none"
AXES = {
    "privacy.epsilon": "epsilon of the run, per record",
    "privacy.noise_multiplier": "noise multiplier",
    "rounds": "rounds",
    "data.condition": "condition number of the data",
    "data.offset": "distance of the features' centre from 0",
    "data.records": "records of a silo",
    "algorithm.local_steps": "local steps of a round",
}
MEASURES = {"train_loss": "training loss"}
SPREADS = {
    "interval 95%": "95 % interval of the mean",
    "simultaneous 95%": "simultaneous 95 % interval",
    "deviation": "standard deviation over the seeds",
}
GREY, DARK = "#BBBBBB", "#333333"
WIDTH, PANEL_HEIGHT, MOST_COLUMNS = 9.0, 1.9, 5  # inches, inches, panels


@dataclass(frozen=True)
class Curve:
    """Means of one curve by place; `spreads` holds the half widths of those that have one."""

    label: str
    values: dict[str, float]
    spreads: dict[str, float]


def curves(rows: Sequence[Mapping[str, str]]) -> list[Curve]:
    """Curves of a figure's rows, in order. A panel of the figure is part of a curve's label."""
    found: dict[str, Curve] = {}
    for row in rows:
        label = ", ".join(filter(None, (row["curve"], row["panel"])))
        curve = found.setdefault(label, Curve(label, {}, {}))
        curve.values[row["at"]] = float(row["value"])
        if row["spread"]:
            curve.spreads[row["at"]] = float(row["spread"])
    return list(found.values())


def positions(places: Sequence[str]) -> dict[str, float]:
    """Coordinates of places, ascending: powers of two if all numbers are above 0, `none` apart at the end."""
    numbers = sorted((place for place in places if place != NO_NOISE), key=float)
    if all(float(place) > 0 for place in numbers):
        found = {place: math.log2(float(place)) for place in numbers}
    else:
        found = {place: float(number) for number, place in enumerate(numbers)}
    if NO_NOISE in places:
        at = list(found.values())
        step = (at[-1] - at[0]) / (len(at) - 1) if len(at) > 1 else 1.0
        found[NO_NOISE] = (at[-1] if at else 0.0) + 1.3 * step
    return found


def axis(key: str) -> str:
    """Words for the axis of a key."""
    return AXES.get(key, key.rpartition(".")[2].replace("_", " "))


def measured(measure: str) -> str:
    """Words for a measure."""
    difference = DIFFERENCE.match(measure)
    if difference is None:
        return MEASURES.get(measure, measure)
    return f"{measured(difference['measure'])}, difference from {difference['baseline']}"


def drawn(blocks: Mapping[str, Sequence[Mapping[str, str]]], measure: str) -> Any:
    """A matplotlib figure with the panels of each block, rows of one measure by name of their figure."""
    from matplotlib.figure import Figure

    made = {name: curves(rows) for name, rows in blocks.items()}
    columns = max(_columns(len(block)) for block in made.values())
    heights = {name: math.ceil(len(block) / columns) for name, block in made.items()}
    lines = sum(heights.values())
    figure = Figure(figsize=(WIDTH, PANEL_HEIGHT * lines + 1.0), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False)
    colour_of = colours(curve.label for block in made.values() for curve in block)
    top = 0
    for name, block in made.items():
        rows = grid[top : top + heights[name]]
        top += heights[name]
        words = measured(measure).replace(", difference", ",\ndifference")
        _block(rows, block, measure, f"{name}\n{words}" if len(made) > 1 else words, colour_of)
    spreads = {row["spread_of"] for rows in blocks.values() for row in rows if row["spread"]}
    figure.supxlabel(axis(next(iter(blocks.values()))[0]["key"]), fontsize=11)
    figure.legend(*_legend(sorted(spreads), measure), loc="outside upper center", ncols=4, frameon=False, fontsize=10)
    return figure


def save(blocks: Mapping[str, Sequence[Mapping[str, str]]], measure: str, path: Path) -> None:
    """Writes the image of the blocks, the same bytes for the same rows."""
    from matplotlib import style

    path.parent.mkdir(parents=True, exist_ok=True)
    with style.context("default", after_reset=True):
        drawn(blocks, measure).savefig(path, dpi=200, metadata={"Software": None})


def _columns(count: int) -> int:
    """Panels of a row: all rows as full as possible."""
    return math.ceil(count / math.ceil(count / MOST_COLUMNS))


def _block(rows: Any, block: Sequence[Curve], measure: str, label: str, colour_of: Mapping[str, str]) -> None:
    at = positions(list(dict.fromkeys(place for curve in block for place in curve.values)))
    panels = list(rows.flat)
    for panel in panels[len(block) :]:
        panel.set_visible(False)
    for number, (panel, curve) in enumerate(zip(panels, block, strict=False)):
        if DIFFERENCE.match(measure):
            panel.axhline(0, color=DARK, linestyle="--", linewidth=1)
        for other in block:
            if other is not curve:
                _line(panel, other, at, GREY, 1, 1)
        colour = colour_of[curve.label]
        _line(panel, curve, at, colour, 3, 2)
        _spread(panel, curve, at, colour)
        panel.set_title(curve.label.replace(", ", ",\n", 1), color=colour, fontsize=10, fontweight="bold")
        below = number + rows.shape[1] >= len(block)
        panel.set_xticks(list(at.values()), [_shown(place) for place in at] if below else [""] * len(at))
        panel.tick_params(labelsize=9, labelleft=number % rows.shape[1] == 0)
        panel.grid(alpha=0.25, linewidth=0.6)
        if number % rows.shape[1] == 0:
            panel.set_ylabel(label, fontsize=10)
    _scale(panels[: len(block)], block, "loss" in measure and not DIFFERENCE.match(measure))
    width = max(at.values()) - min(at.values()) or 1.0
    for panel in panels[: len(block)]:
        panel.set_xlim(min(at.values()) - 0.07 * width, max(at.values()) + 0.07 * width)


def _runs(curve: Curve, at: Mapping[str, float]) -> list[list[str]]:
    """Places that a line joins: neighbours on the axis that the curve has; no line leads to `none`."""
    runs: list[list[str]] = [[]]
    for place in at:
        if place == NO_NOISE or place not in curve.values:
            runs.append([])
        if place in curve.values:
            runs[-1].append(place)
    return [run for run in runs if run]


def _line(panel: Any, curve: Curve, at: Mapping[str, float], colour: str, order: int, width: float) -> None:
    for run in _runs(curve, at):
        x, y = [at[place] for place in run], [curve.values[place] for place in run]
        marker = "o" if width > 1 or len(run) == 1 else None
        panel.plot(x, y, color=colour, linewidth=width, marker=marker, markersize=1.5 + 1.5 * width, zorder=order)


def _spread(panel: Any, curve: Curve, at: Mapping[str, float], colour: str) -> None:
    """A band along the places of a line, bars at a place alone."""
    for run in _runs(curve, at):
        here = [place for place in run if place in curve.spreads]
        x, y = [at[place] for place in here], [curve.values[place] for place in here]
        half = [curve.spreads[place] for place in here]
        if len(here) > 1 and here == run:
            low, high = ([value + sign * width for value, width in zip(y, half, strict=True)] for sign in (-1, 1))
            panel.fill_between(x, low, high, color=colour, alpha=0.28, linewidth=0, zorder=2)
        elif here:
            panel.errorbar(x, y, half, fmt="none", ecolor=colour, elinewidth=1.5, capsize=3, zorder=3)


def _scale(panels: Sequence[Any], block: Sequence[Curve], logarithmic: bool) -> None:
    """One range for all panels, of all means and spreads; logarithmic if all means are above 0."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    ends = [
        (curve.values[place] - sign * curve.spreads.get(place, 0.0), curve.values[place])
        for curve in block
        for place in curve.values
        for sign in (1, -1)
    ]
    low, high = min(end for end, _ in ends), max(end for end, _ in ends)
    logarithmic = logarithmic and all(value > 0 for _, value in ends)
    if logarithmic:
        low = min(end if end > 0 else value / 2 for end, value in ends)
        decades = math.log10(high / low)
        low, high = low / (high / low) ** 0.05, high * (high / low) ** 0.05
    else:
        low, high = low - 0.05 * (high - low), high + 0.05 * (high - low)
    for panel in panels:
        if logarithmic:
            panel.set_yscale("log")
            subs = (1, 2, 5) if decades < 1.3 else (1, 3) if decades < 2.5 else (1,)
            panel.yaxis.set_major_locator(LogLocator(subs=subs))
            panel.yaxis.set_minor_locator(NullLocator())
            panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.set_ylim(low, high)


def _legend(spreads: Sequence[str], measure: str) -> tuple[list[Any], list[str]]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    found: list[tuple[Any, str]] = [(Line2D([], [], color=DARK, linewidth=2, marker="o", markersize=4), "mean")]
    found += [(Patch(color=DARK, alpha=0.28, linewidth=0), SPREADS.get(kind, kind)) for kind in spreads]
    found += [(Line2D([], [], color=GREY, linewidth=1), "the other panels' means")]
    difference = DIFFERENCE.match(measure)
    if difference is not None:
        found.append((Line2D([], [], color=DARK, linestyle="--", linewidth=1), f"level with {difference['baseline']}"))
    return [handle for handle, _ in found], [label for _, label in found]


def _shown(place: str) -> str:
    return f"{int(place):,}" if place.isdigit() else place
