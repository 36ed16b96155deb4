"""A figure of curves over rounds: accuracy or a loss, one curve per method and panel."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from fedcore.directed_rounding import in_full
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.result import RunResult
from fedcore.home import Home
from fedcore.hyperparameters import Section
from flows.reports.settings import value_at
from flows.runs import store_path
from studies.figures.formats import place_text
from studies.figures.least_loss import gap, least_loss
from tasks.run_store import RunStore


class CurvesConfig(Section):
    """Metric, panels and curves of a plot over rounds, and the paper's numbers beside them."""

    metric: Literal["accuracy", "gap", "train_loss", "test_loss"]
    """accuracy: on public test data, percent; gap: ln(F - F*) of the training loss, from raw records: NOT PRIVATE;
    train_loss: that loss itself; test_loss: on public test data."""
    panels: tuple[str, ...] = Field(min_length=1)
    """Keys with one panel for each combination of values. A run without noise has no trust and no epsilon; it is in
    the panels of all values of these two keys."""
    apart: tuple[str, ...] = ()
    """Keys that distinguish curves of one method; the labels show their values."""
    against: Literal["rounds", "floats"] = "rounds"
    """The horizontal axis: rounds, or numbers sent by all silos so far, on a logarithmic scale."""
    ends: Literal["last", "least"] = "last"
    """The value of each run in tables: its last, or its least over all evaluated rounds."""
    published_panels: tuple[tuple[Any, ...], ...] = ()
    """Values of the panels' keys, in the order of the published values."""
    published: dict[str, tuple[float | None, ...]] = Field(default_factory=dict)
    """End values that the paper published or plotted, by curve."""
    baseline: str | None = None
    """A curve from which the others' differences are shown, paired by run, with 95 % intervals. A one-sided paired
    t-test gives the p-value of a mean below 0."""


@dataclass(frozen=True)
class Curve:
    """A method in a panel: at each evaluated round, mean and deviation over its runs.

    `floats`: numbers sent by all silos until that round, mean over runs; () if the axis is rounds. `ends`: the last
    or the least value of each run; `seeds`: seed and repetition of each, in the same order.
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
    """The paper's name of a curve: the method, "DP-" if it is private, and values of the keys `apart`."""
    warm = "-warm" if getattr(config.algorithm, "warm", False) else ""
    private = "DP-" if config.privacy.trust != "none" else ""
    values = [f", {key.rpartition('.')[2]} {_shown(value_at(config, key))}" for key in apart if _has(config, key)]
    return f"{private}{config.algorithm.name}{warm}{''.join(values)}"


_NOISE = ("privacy.trust", "privacy.epsilon")
"""Keys without a meaning for a run without noise."""
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
    """Curves from the metrics of finished runs, one per label and panel, in the order of the cells."""
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
    """The panels of a run: its own; for one without noise those of all runs with noise, in the order of the cells."""
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
    """Values of each metric by round, numbered from 1 over the whole run."""
    with closing(RunStore(store_path(home, run))) as store:
        rows = list(enumerate(store.metric_rows(), 1))
    return [{at: row.values[key] for at, row in rows if key in row.values} for key in keys]


def panel_name(panel: tuple[Any, ...]) -> str:
    """The printed values of a panel's keys."""
    return f"({', '.join(map(place_text, panel))})"
