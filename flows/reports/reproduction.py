"""A paper's figures anew: sweeps, the choice of hyperparameters as in the paper, tables and plots.

`conf/paper/<name>/figures.yaml` lists the figures; each is a sweep whose grid also holds hyperparameters to choose.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from fedcore.configfile import validated
from fedcore.data.sources.mnist import Flavour, load_labels
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.result import RunResult
from fedcore.experiment.sweep import SweepConfig, load_sweep
from fedcore.home import Home
from fedcore.hyperparameters import Section
from flows.reports.lines import Line
from flows.reports.reproduced_curves import CurvesConfig, curves, draw_curves
from flows.reports.reproduced_table import TableConfig, draw_table, table_cells
from flows.reports.table import plot
from flows.reports.trials import half_width, paired_differences
from tasks.run_store import jsonable, write_atomically

PAPERS = Path(__file__).parents[1].joinpath("paper").resolve()
"""`conf/paper`: a link leads there, and an installed package has a copy in its place."""


class FigureConfig(Section):
    """One figure: test error against epsilon, one curve per method."""

    name: str = Field(pattern=r"^[a-z0-9-]+$")
    title: str
    baseline: str | None = None
    """A method, from which the differences of the others in the same trials are shown too."""
    sweep: str
    """Path of the sweep's file, from the folder of this one."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Keys of an experiment, with dots, put into the sweep's base."""
    images: Flavour | None = None
    """Of images in IDX files; left out while there is no folder of this name in the home to hold them."""
    table: TableConfig | None = None
    """A table of accuracies by two keys, in place of curves over epsilon."""
    curves: tuple[CurvesConfig, ...] = ()
    """Curves over rounds, one plot for each metric, in place of those over epsilon."""


class ReproductionConfig(Section):
    """The figures of one paper."""

    title: str
    figures: tuple[FigureConfig, ...] = Field(min_length=1)


@dataclass(frozen=True)
class Point:
    """A method at one epsilon: test error over trials (seeds), each with the hyperparameters that the trial chose.

    `interval`: half width of the 95 % interval of the mean (Student's t); None for one trial. `chosen`: how often each
    set of hyperparameters was.
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
    """Of the trials, in the order of `errors`."""

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
            self.method, self.epsilon, self.accounted, self.mean, self.deviation, len(self.errors), self.rounds,
            self.seconds, self.noise,
        )  # fmt: skip


def load_reproduction(
    name: str, home: Home, overrides: Sequence[str] = (), only: Sequence[str] = ()
) -> tuple[list[tuple[FigureConfig, SweepConfig]], str | None]:
    """The figures of `conf/paper/<name>` with their sweeps, and which are left out and why (None: none).

    Overrides go to every sweep and win over a figure's own. `only`: names of figures; none: all. Raises InputError,
    also for images that are not there if their figure, or their folder (`data.folder`), was asked for by name.
    """
    path = PAPERS / name / "figures.yaml"
    if not path.is_file():
        known = sorted(found.parent.name for found in PAPERS.glob("*/figures.yaml"))
        raise InputError(f"no reproduction is called {name!r}; there are: {', '.join(known)}")
    config = validated(ReproductionConfig, yaml.safe_load(path.read_text()), str(path))
    names = [figure.name for figure in config.figures]
    for unknown in sorted(set(only) - set(names)):
        raise InputError(f"reproduction {name} has no figure {unknown!r}; there are: {', '.join(names)}")
    given = next((text.partition("=")[2] for text in overrides if text.startswith("data.folder=")), None)
    drawn: list[tuple[FigureConfig, SweepConfig]] = []
    without: dict[str, list[str]] = {}
    for figure in config.figures:
        if only and figure.name not in only:
            continue
        keys = dict(figure.set)
        if figure.images is not None:
            folder = Path(given or home.root / figure.images)
            try:
                load_labels(str(folder), figure.images)  # the error of a missing file, before any cell is run
            except InputError as error:
                if folder.is_dir() or given or figure.name in only:
                    raise
                without.setdefault(str(error), []).append(figure.name)
                continue
            keys |= {"data.source": "mnist", "data.flavour": figure.images, "data.folder": str(folder)}
        own = [f"{key}={json.dumps(value)}" for key, value in keys.items()]
        drawn.append((figure, load_sweep(path.parent / figure.sweep, [f"name={name}-{figure.name}", *own, *overrides])))
    return drawn, "\n".join(f"left out: {', '.join(left)}; {why}" for why, left in without.items()) or None


def points(cells: Iterable[ExperimentConfig], results: Iterable[RunResult]) -> list[Point]:
    """Per method and epsilon, over the trials. `results` are those of `cells`, in their order.

    In each trial (a seed) the hyperparameters with the lowest training loss, averaged over the runs of the trial
    (repetitions), are taken, and their average test error is the trial's: the paper's rule. It looks at raw records,
    once per candidate, and is outside of every epsilon. Without a training loss there must be one candidate only.
    Raises InputError otherwise.
    """
    trials: dict[tuple[str, float | None], dict[int, dict[str, list[RunResult]]]] = {}
    for cell, result in zip(cells, results, strict=True):
        chosen = json.dumps(cell.model_dump(mode="json")["algorithm"], sort_keys=True)
        mine = trials.setdefault((result.method, result.epsilon_target), {})
        mine.setdefault(cell.seed, defaultdict(list))[chosen].append(result)
    found = []
    for (method, epsilon), by_seed in trials.items():
        picked = [min(candidates.items(), key=_loss(candidates)) for candidates in by_seed.values()]
        runs = list(itertools.chain.from_iterable(group for _, group in picked))
        spent = [run.epsilon_accounted for run in runs if run.epsilon_accounted is not None]
        if any(run.test_error is None for run in runs):
            raise InputError("a figure of test errors needs public test data of classes")
        found.append(
            Point(
                method, epsilon, max(spent, default=None),
                tuple(statistics.fmean(run.test_error or 0.0 for run in group) for _, group in picked),
                {key: sum(key == other for other, _ in picked) for key in dict.fromkeys(key for key, _ in picked)},
                runs[0].noise, statistics.fmean(run.seconds for run in runs), max(run.rounds for run in runs),
                tuple(by_seed),
            )
        )  # fmt: skip
    return found


def _loss(candidates: dict[str, list[RunResult]]) -> Any:
    def key(candidate: tuple[str, list[RunResult]]) -> float:
        if len(candidates) == 1:
            return 0.0
        losses = [run.simulation["train_loss"] for run in candidate[1] if run.simulation is not None]
        if len(losses) < len(candidate[1]):
            raise InputError("hyperparameters are chosen by training loss: set tracking.simulation_metrics=true")
        return statistics.fmean(losses)

    return key


def draw(
    home: Home, name: str, figure: FigureConfig, cells: Sequence[ExperimentConfig], results: Sequence[RunResult]
) -> Path:
    """Writes plot, table.json and table.md of a figure into `reproductions/<name>/<figure>` and returns the folder.

    A table has no plot. Raises InputError for results that do not make the figure.
    """
    folder = home.root / "reproductions" / name / figure.name
    if figure.table is not None:
        draw_table(folder, figure.table, table_cells(figure.table, cells, results))
    elif figure.curves:
        parts = [
            draw_curves(folder, plotted, figure.title, curves(home, plotted, cells, results))
            for plotted in figure.curves
        ]
        write_atomically(folder / "table.md", "\n".join(parts).encode())
    else:
        _draw_points(folder, figure, points(cells, results))
    return folder


def _draw_points(folder: Path, figure: FigureConfig, made: Sequence[Point]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    plot([point.line for point in made], folder / "plot.png", figure.title)
    rows = [
        {
            "method": point.method, "epsilon": point.epsilon, "epsilon_accounted": point.accounted, "mean": point.mean,
            "deviation": point.deviation, "interval_95": point.interval, "errors": point.errors,
            "chosen": point.chosen, "seeds": point.seeds,
        }
        for point in made
    ]  # fmt: skip
    write_atomically(folder / "table.json", jsonable({"figure": figure.name, "title": figure.title, "points": rows}))
    text = markdown(made)
    if figure.baseline is not None:
        text += f"\nDifference from {figure.baseline} in the same trials:\n\n"
        text += markdown(differences(made, figure.baseline))
    write_atomically(folder / "table.md", text.encode())


def differences(made: Sequence[Point], baseline: str) -> list[Point]:
    """Points of the other methods whose errors are differences, trial by trial, from the baseline's at that epsilon.

    Raises InputError for other trials.
    """
    base = {point.epsilon: point.by_seed for point in made if point.method == baseline}
    found = []
    for point in made:
        if point.method == baseline:
            continue
        whose = f"{point.method} at epsilon {point.epsilon}"
        errors = paired_differences(point.by_seed, base.get(point.epsilon, {}), whose, baseline)
        found.append(replace(point, errors=errors))
    return found


def markdown(made: Sequence[Point]) -> str:
    """Methods by epsilon: mean over trials, half width of its 95 % interval."""
    epsilons = sorted({point.epsilon for point in made if point.epsilon is not None})
    by_place = {(point.method, point.epsilon): point for point in made}
    lines = [
        "| method | " + " | ".join(f"epsilon {epsilon:g}" for epsilon in epsilons) + " | trials |",
        "|---|" + "---|" * (len(epsilons) + 1),
    ]
    for method in dict.fromkeys(point.method for point in made):
        mine = [by_place.get((method, epsilon)) for epsilon in epsilons]
        trials = max((len(point.errors) for point in mine if point is not None), default=0)
        if trials:
            lines.append(f"| {method} | " + " | ".join(map(_cell, mine)) + f" | {trials} |")
    return "\n".join(lines) + "\n"


def _cell(point: Point | None) -> str:
    if point is None:
        return "-"
    return f"{point.mean:.3f}" + ("" if point.interval is None else f" ± {point.interval:.3f}")
