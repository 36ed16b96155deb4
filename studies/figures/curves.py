"""A figure of curves over rounds anew: accuracy or a loss, one curve per method and panel."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from fedcore.directed_rounding import in_full
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.result import RunResult
from fedcore.home import Home
from fedcore.hyperparameters import Section
from fedcore.printable import in_drawing
from flows.reports.settings import value_at
from flows.reports.table import markdown_table
from flows.runs import store_path
from studies.figures.formats import FORMATS, place_text
from studies.figures.least_loss import NOT_PRIVATE, gap, least_loss
from studies.figures.trials import below_zero, deviation, half_width, paired_differences
from tasks.result_file import jsonable, write_atomically
from tasks.run_store import RunStore


class CurvesConfig(Section):
    """What is drawn over rounds, and the keys whose values tell panels apart."""

    metric: Literal["accuracy", "gap", "train_loss", "test_loss"]
    """accuracy: on public test data, percent; gap: ln(F - F*) of the training loss, from raw records: NOT PRIVATE;
    train_loss: that loss itself; test_loss: on public test data."""
    panels: tuple[str, ...] = Field(min_length=1)
    """A run without noise has no trust and no epsilon: of these keys it is in every panel."""
    apart: tuple[str, ...] = ()
    """Keys that tell curves of one method apart, in whose label they are."""
    against: Literal["rounds", "floats"] = "rounds"
    """What is along the axis: rounds, or numbers that all silos have sent until then, on a logarithmic one."""
    ends: Literal["last", "least"] = "last"
    """What tables are about: the last value of each run, or its least over all evaluated rounds."""
    published_panels: tuple[tuple[Any, ...], ...] = ()
    """Values of the panels' keys, in the order of what was published."""
    published: dict[str, tuple[float | None, ...]] = Field(default_factory=dict)
    """End values that the paper published or plotted, by curve."""
    baseline: str | None = None
    """A curve from whose end the differences of the others' are shown too, run by run, all with 95 % intervals, and how
    likely a mean so far below 0 is by chance (paired t-test, one-sided)."""


@dataclass(frozen=True)
class Curve:
    """A method in a panel: at each evaluated round, mean and deviation over its runs.

    `floats`: numbers that silos have sent until that round, mean over runs, where these are along the axis; else ().
    `ends`: the last value of each run, or its least, `seeds`: seed and repetition of each, in the same order.
    """

    label: str
    panel: tuple[Any, ...]
    rounds: tuple[int, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    ends: tuple[float, ...]
    seeds: tuple[tuple[int, int], ...]
    floats: tuple[float, ...] = ()

    @property
    def runs(self) -> int:
        return len(self.ends)

    @property
    def by_seed(self) -> dict[tuple[int, int], float]:
        return dict(zip(self.seeds, self.ends, strict=True))


def label_of(config: ExperimentConfig, apart: Sequence[str] = ()) -> str:
    """Method and whether it is private, as the paper names its curves, and values of the keys `apart`."""
    warm = "-warm" if getattr(config.algorithm, "warm", False) else ""
    private = "DP-" if config.privacy.trust != "none" else ""
    told = [f", {key.rpartition('.')[2]} {_shown(value_at(config, key))}" for key in apart if _has(config, key)]
    return f"{private}{config.algorithm.name}{warm}{''.join(told)}"


_NOISE = ("privacy.trust", "privacy.epsilon")
"""Keys of which a run without noise says nothing."""
_SERIES = {
    "accuracy": "test/error",
    "gap": "simulation/train_loss",
    "train_loss": "simulation/train_loss",
    "test_loss": "test/loss",
}
_FLOATS = "communication/floats_up"


def _shown(value: Any) -> str:
    return "best" if value is None else in_full(value) if isinstance(value, float) else str(value)


def _has(config: ExperimentConfig, key: str) -> bool:
    return not key.startswith("algorithm.") or hasattr(config.algorithm, key.removeprefix("algorithm."))


def curves(
    home: Home, figure: CurvesConfig, cells: Sequence[ExperimentConfig], results: Sequence[RunResult]
) -> list[Curve]:
    """From the metrics of finished runs, one per label and panel in the order of the cells."""
    groups: dict[tuple[str, tuple[Any, ...]], dict[tuple[int, int], dict[int, float]]] = {}
    floats: dict[tuple[str, tuple[Any, ...]], list[dict[int, float]]] = {}
    least: dict[str, float] = {}
    for config, result in zip(cells, results, strict=True):
        series, sent = _series(home, result.run, _SERIES[figure.metric], _FLOATS)
        if figure.metric == "accuracy":
            series = {at: 100.0 * (1.0 - value) for at, value in series.items()}
        elif figure.metric == "gap":
            optimum = least_loss(home, config, least)
            series = {at: math.log(max(gap(config, value, optimum), 1e-12)) for at, value in series.items()}
        for panel in _panels(figure, config, cells):
            curve = label_of(config, figure.apart), panel
            groups.setdefault(curve, {})[config.seed, config.repetition] = series
            floats.setdefault(curve, []).append(sent)
    found = []
    for (label, panel), by_seed in groups.items():
        runs = list(by_seed.values())
        shared = sorted(set.intersection(*(set(run) for run in runs)))
        columns = [[run[at] for run in runs] for at in shared]
        deviation = [statistics.stdev(column) if len(column) > 1 else 0.0 for column in columns]
        means = [statistics.fmean(column) for column in columns]
        ends = columns[-1] if figure.ends == "last" else [min(run.values()) for run in runs]
        up: tuple[float, ...] = ()
        if figure.against == "floats":
            up = tuple(statistics.fmean(sent[at] for sent in floats[label, panel]) for at in shared)
        found.append(
            Curve(label, panel, tuple(shared), tuple(means), tuple(deviation), tuple(ends), tuple(by_seed), up)
        )
    return found


def _panels(figure: CurvesConfig, config: ExperimentConfig, cells: Sequence[ExperimentConfig]) -> list[tuple[Any, ...]]:
    """The panels that a run is in, in the order of the cells: one; without noise those of all runs with noise."""
    mine = tuple(value_at(config, key) for key in figure.panels)
    blank = [key in _NOISE and config.privacy.trust == "none" for key in figure.panels]
    if not any(blank):
        return [mine]
    others = [tuple(value_at(cell, key) for key in figure.panels) for cell in cells if cell.privacy.trust != "none"]
    alike = [
        panel
        for panel in dict.fromkeys(others)
        if all(free or own == other for free, own, other in zip(blank, mine, panel, strict=True))
    ]
    return alike or [mine]


def _series(home: Home, run: str, *keys: str) -> list[dict[int, float]]:
    """Metrics by the number of the round, from 1, in the whole run."""
    with closing(RunStore(store_path(home, run))) as store:
        rows = list(enumerate(store.metric_rows(), 1))
    return [{at: row.values[key] for at, row in rows if key in row.values} for key in keys]


def draw_curves(folder: Path, figure: CurvesConfig, title: str, made: Sequence[Curve]) -> str:
    """Writes plot-<metric>.png and table-<metric>.json into the folder; returns end values as a Markdown table.

    Both names have -by-floats where these are along the axis.
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
    if figure.metric == "accuracy":  # where less is worse
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
    """The other curves less the baseline's of their panel, at the end, run by run. Raises InputError for other runs."""
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


def panel_name(panel: tuple[Any, ...]) -> str:
    """The values of a panel's keys, as they are printed."""
    return f"({', '.join(map(place_text, panel))})"
