"""Curves over rounds as plots, one panel beside the other, and their end values as tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedcore.printable import in_drawing
from flows.reports.table import markdown_table
from studies.figures.curves import Curve, CurvesConfig, panel_name
from studies.figures.formats import FORMATS
from studies.figures.least_loss import NOT_PRIVATE
from studies.figures.trials import below_zero, deviation, half_width, paired_differences
from tasks.result_file import jsonable, write_atomically


def draw_curves(folder: Path, figure: CurvesConfig, title: str, made: Sequence[Curve]) -> str:
    """Writes plot-<metric>.png and table-<metric>.json into the folder; returns end values as a Markdown table.

    Both names have -by-floats if the axis is numbers sent.
    """
    folder.mkdir(parents=True, exist_ok=True)
    panels = list(dict.fromkeys(curve.panel for curve in made))
    named = figure.metric if figure.against == "rounds" else f"{figure.metric}-by-floats"
    _plot(folder / f"plot-{named}.png", figure, title, made, panels)
    table = {"title": title, "metric": figure.metric, "curves": [asdict(curve) for curve in made]}
    if figure.metric in ("gap", "train_loss"):
        table["statement"] = NOT_PRIVATE
    write_atomically(folder / f"table-{named}.json", jsonable(table))
    named, where = _NAMED[figure.metric], "at the end" if figure.ends == "last" else "at its least"
    if figure.baseline is None:
        beside = " (published)" if figure.published else ""
        return _ends(f"{named} {where}{beside}", figure, made, panels, lambda curve: deviation(curve.ends))
    text = _ends(f"{named} {where}, 95 % interval", figure, made, panels, lambda curve: half_width(curve.ends))
    apart = differences(made, figure.baseline)
    head = f"difference from {figure.baseline}, run by run, 95 % interval"
    text += "\n" + _ends(head, figure, apart, panels, lambda curve: half_width(curve.ends))
    if figure.metric == "accuracy":  # a lower accuracy is worse, so the test has no meaning
        return text
    return text + "\n" + _chances(f"p of no less than {figure.baseline}", apart, panels)


def _chances(head: str, apart: Sequence[Curve], panels: Sequence[tuple[Any, ...]]) -> str:
    """One-sided p-values of paired t-tests for differences below 0, label by panel, as a Markdown table."""
    columns: dict[str, list[str]] = {head: [], **{panel_name(panel): [] for panel in panels}}
    for label in dict.fromkeys(curve.label for curve in apart):
        mine = {curve.panel: below_zero(curve.ends) for curve in apart if curve.label == label}
        columns[head].append(label)
        for panel in panels:
            p = mine.get(panel)
            columns[panel_name(panel)].append("-" if p is None else f"{p:.2g}")
    return markdown_table(columns)


_NAMED = {
    "accuracy": "accuracy in percent",
    "gap": "ln(F - F*), not private,",
    "train_loss": "training loss, not private,",
    "test_loss": "test loss",
}


def differences(made: Sequence[Curve], baseline: str) -> list[Curve]:
    """End values of the other curves minus the baseline's in their panel, run by run.

    Raises InputError for other runs.
    """
    base = {curve.panel: curve.by_seed for curve in made if curve.label == baseline}
    found = []
    for curve in made:
        if curve.label == baseline:
            continue
        ends = paired_differences(
            curve.by_seed, base.get(curve.panel, {}), f"{curve.label} in panel {panel_name(curve.panel)}", baseline
        )
        mean, spread = statistics.fmean(ends), deviation(ends)
        found.append(Curve(curve.label, curve.panel, curve.rounds[-1:], (mean,), (spread,), ends, curve.seeds))
    return found


def _ends(
    head: str,
    figure: CurvesConfig,
    made: Sequence[Curve],
    panels: Sequence[tuple[Any, ...]],
    spread: Callable[[Curve], float | None],
) -> str:
    """End values, label by panel, as a Markdown table."""
    columns: dict[str, list[str]] = {head: [], **{panel_name(panel): [] for panel in panels}, "runs": []}
    for label in dict.fromkeys(curve.label for curve in made):
        mine = {curve.panel: curve for curve in made if curve.label == label}
        published = dict(zip(figure.published_panels, figure.published.get(label, ()), strict=False))
        columns[head].append(label)
        columns["runs"].append(str(max(curve.runs for curve in mine.values())))
        for panel in panels:
            curve, value = mine.get(panel), published.get(panel)
            beside = "" if value is None else f" ({value:g})"
            digits = FORMATS[figure.metric]
            columns[panel_name(panel)].append(
                "-"
                if curve is None
                else f"{statistics.fmean(curve.ends):{digits}}{_plus_minus(spread(curve), digits)}{beside}"
            )
    return markdown_table(columns)


def _plus_minus(spread: float | None, digits: str) -> str:
    return "" if spread is None else f" ± {spread:{digits if digits == '.2f' else '.2g'}}"


def _plot(
    path: Path, figure: CurvesConfig, title: str, made: Sequence[Curve], panels: Sequence[tuple[Any, ...]]
) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn, axes = pyplot.subplots(
        1, len(panels), figsize=(4.2 * len(panels) + 1, 4), layout="constrained", sharey=True, squeeze=False
    )
    labels = list(dict.fromkeys(curve.label for curve in made))
    for axis, panel in zip(axes[0], panels, strict=True):
        for curve in (curve for curve in made if curve.panel == panel):
            colour = f"C{labels.index(curve.label)}"
            low = [mean - spread for mean, spread in zip(curve.mean, curve.deviation, strict=True)]
            high = [mean + spread for mean, spread in zip(curve.mean, curve.deviation, strict=True)]
            style = "-" if curve.label.startswith("DP-") else "--"
            along = curve.rounds if figure.against == "rounds" else curve.floats
            axis.plot(along, curve.mean, style, color=colour, label=in_drawing(curve.label))
            axis.fill_between(along, low, high, color=colour, alpha=0.15, linewidth=0)
        axis.set_title(in_drawing(panel_name(panel)), fontsize="medium")
        axis.set_xlabel("round" if figure.against == "rounds" else "numbers sent by all silos")
        if figure.against == "floats":
            axis.set_xscale("log")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel(_NAMED[figure.metric].removesuffix(","))
    if figure.metric.endswith("loss"):
        axes[0][0].set_yscale("log")
    lines = {label: line for axis in axes[0] for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    axes[0][0].legend(lines.values(), lines.keys(), fontsize="small")
    drawn.suptitle(in_drawing(title), fontsize="medium")
    drawn.savefig(path, dpi=130)
    pyplot.close(drawn)
