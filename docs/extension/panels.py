"""Drawing of a published figure: a panel for each curve, the other curves of the figure grey behind it.

All panels of a figure share their axes. Several figures of one image are blocks of rows, each with an own scale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from extension.curves import DIFFERENCE, Curve, axis, curves, joined, measured
from extension.scales import beyond, fit, positions
from flows.reports.colours import colours

SPREADS = {
    "interval 95%": "95 % interval of the mean",
    "simultaneous 95%": "simultaneous 95 % interval",
    "deviation": "standard deviation over the seeds",
}
GREY, DARK = "#BBBBBB", "#333333"
WIDTH, PANEL_HEIGHT, MOST_COLUMNS = 9.0, 2.2, 5  # inches, inches, panels


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
        difference = DIFFERENCE.match(measure)
        words = measured(measure) if difference is None else f"difference of {measured(difference['measure'])}"
        _block(rows, block, measure, f"{name}:\n{words}" if len(made) > 1 else words, colour_of)
    every = [row for rows in blocks.values() for row in rows]
    figure.supxlabel(axis(every[0]["key"]), fontsize=11)
    several = any(len(block) > 1 for block in made.values())
    legend = _legend(every, measure, several)
    style = {"frameon": False, "fontsize": 9.5, "columnspacing": 1.4, "handletextpad": 0.5}
    figure.legend(*legend, loc="outside upper center", ncols=4, **style)
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
        panel.set_title(curve.label.replace(", ", ",\n", 1), fontsize=10)
        below = number + rows.shape[1] >= len(block)
        panel.set_xticks(list(at.values()), [_shown(place) for place in at] if below else [""] * len(at))
        panel.tick_params(labelsize=9, labelleft=number % rows.shape[1] == 0)
        panel.grid(alpha=0.25, linewidth=0.6)
        if number % rows.shape[1] == 0:
            panel.set_ylabel(label, fontsize=10)
    fit(panels[: len(block)], block, measure)
    for panel, curve in zip(panels, block, strict=False):
        beyond(panel, curve, at)
    width = max(at.values()) - min(at.values()) or 1.0
    for panel in panels[: len(block)]:
        panel.set_xlim(min(at.values()) - 0.07 * width, max(at.values()) + 0.07 * width)


def _line(panel: Any, curve: Curve, at: Mapping[str, float], colour: str, order: int, width: float) -> None:
    for run in joined(curve, at):
        x, y = [at[place] for place in run], [curve.values[place] for place in run]
        marker = "o" if width > 1 or len(run) == 1 else None
        panel.plot(x, y, color=colour, linewidth=width, marker=marker, markersize=1.5 + 1.5 * width, zorder=order)


def _spread(panel: Any, curve: Curve, at: Mapping[str, float], colour: str) -> None:
    """A band along the places of a line, bars at a place alone."""
    for run in joined(curve, at):
        here = [place for place in run if place in curve.spreads]
        x, y = [at[place] for place in here], [curve.values[place] for place in here]
        half = [curve.spreads[place] for place in here]
        if len(here) > 1 and here == run:
            low, high = ([value + sign * width for value, width in zip(y, half, strict=True)] for sign in (-1, 1))
            panel.fill_between(x, low, high, color=colour, alpha=0.28, linewidth=0, zorder=2)
        elif here:
            panel.errorbar(x, y, half, fmt="none", ecolor=colour, elinewidth=1.5, capsize=3, zorder=3)


def _legend(rows: Sequence[Mapping[str, str]], measure: str, several: bool) -> tuple[list[Any], list[str]]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    trials = {row["trials"] for row in rows}
    mean = f"mean of {trials.pop()} trials" if len(trials) == 1 else "mean"
    found: list[tuple[Any, str]] = [(Line2D([], [], color=DARK, linewidth=2, marker="o", markersize=4), mean)]
    for kind in sorted({row["spread_of"] for row in rows if row["spread"]}):
        found.append((Patch(color=DARK, alpha=0.28, linewidth=0), SPREADS.get(kind, kind)))
    if several:
        found.append((Line2D([], [], color=GREY, linewidth=1), "means of the other panels"))
    difference = DIFFERENCE.match(measure)
    if difference is not None:
        found.append((Line2D([], [], color=DARK, linestyle="--", linewidth=1), f"level of {difference['baseline']}"))
    return [handle for handle, _ in found], [label for _, label in found]


def _shown(place: str) -> str:
    return f"{int(place):,}" if place.isdigit() else place
