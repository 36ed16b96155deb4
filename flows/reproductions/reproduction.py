"""A paper's figures anew: sweeps, the choice of hyperparameters as in the paper, tables and plots.

`conf/paper/<name>/figures.yaml` lists the figures; each is a sweep whose grid also holds hyperparameters to choose.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from fedcore.configfile.reading import read_yaml, validated
from fedcore.data.sources.insurance import load_insurance
from fedcore.data.sources.mnist import Flavour, load_labels
from fedcore.data.sources.tables.catalogue import FileTable
from fedcore.data.sources.tables.split import check_table
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.result import RunResult
from fedcore.experiment.sweep import SweepConfig, load_sweep
from fedcore.home import Home
from fedcore.hyperparameters import Section
from flows.recorded.former_ids import RecordedRuns
from flows.reproductions.along import draw_ways, ways
from flows.reproductions.chosen import (
    Choice,
    ChosenConfig,
    applying,
    choices,
    choices_json,
    choices_table,
    first_choices,
    to_try,
    with_choices,
)
from flows.reproductions.curves import CurvesConfig, curves, draw_curves
from flows.reproductions.drawn_points import draw_points
from flows.reproductions.paper_table import TableConfig, draw_table, table_cells
from flows.reproductions.points import PointsConfig, points
from flows.reproductions.rows import rows_of
from tasks.result_file import jsonable, write_atomically

PAPERS = Path(__file__).parents[1].joinpath("conf", "paper").resolve()
"""`conf/paper`: a link leads there, and an installed package has a copy in its place."""


class FigureConfig(Section):
    """One figure: an error against epsilon, one curve per method, unless it is a table or curves over rounds."""

    name: str = Field(pattern=r"^[a-z0-9-]+$")
    title: str
    baseline: str | None = None
    """A curve, from which the differences of the others in the same trials are shown too."""
    sweep: str
    """Path of the sweep's file, from the folder of this one."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Keys of an experiment, with dots, put into the sweep's base."""
    grid: dict[str, list[Any]] = Field(default_factory=dict)
    """Lists of values by dotted key, added to the grid of each of the sweep's variants."""
    images: Flavour | None = None
    """Of images in IDX files; left out while there is no folder of this name in the home to hold them."""
    records: Literal["insurance"] | FileTable | None = None
    """Of a table in files; left out while there is no folder of this name in the home to hold it."""
    points: PointsConfig = PointsConfig()
    """Which error is drawn against epsilon, and what tells curves of one method apart."""
    chosen: ChosenConfig | None = None
    """Of settings that are chosen on simulated silos, before the figure's own runs."""
    along: tuple[float, ...] = ()
    """Epsilons at which the error along the runs is drawn too; needs tracking.evaluate_every: 1."""
    table: TableConfig | None = None
    """A table of accuracies by two keys, in place of curves over epsilon."""
    curves: tuple[CurvesConfig, ...] = ()
    """Curves over rounds, one plot for each metric, in place of those over epsilon."""


class ReproductionConfig(Section):
    """The figures of one paper."""

    title: str
    figures: tuple[FigureConfig, ...] = Field(min_length=1)


def load_reproduction(
    name: str, home: Home, overrides: Sequence[str] = (), only: Sequence[str] = ()
) -> tuple[list[tuple[FigureConfig, SweepConfig]], str | None]:
    """The figures of `conf/paper/<name>` with their sweeps, and which are left out and why (None: none).

    Overrides go to every sweep and win over a figure's own. `only`: names of figures; none: all. Raises InputError,
    also for files that are not there if their figure, or their folder (`data.folder`), was asked for by name.
    """
    path = PAPERS / name / "figures.yaml"
    if not path.is_file():
        known = sorted(found.parent.name for found in PAPERS.glob("*/figures.yaml"))
        raise InputError(f"no reproduction is called {name!r}; there are: {', '.join(known)}")
    config = validated(ReproductionConfig, read_yaml(path, ()), str(path))
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
        needed = figure.images or figure.records
        if needed is not None:
            folder = Path(given) if given else home.public(needed)
            try:
                keys |= _files(figure, str(folder))  # the error of a missing file, before any cell is run
            except InputError as error:
                if folder.is_dir() or given or figure.name in only:
                    raise
                without.setdefault(str(error), []).append(figure.name)
                continue
        base = None if figure.chosen is None else figure.chosen.data
        sweep = _sweep(name, figure, figure.name, keys, overrides, base)
        drawn.append((figure, sweep if figure.chosen is not None else sweep.over(figure.grid)))
    return drawn, "\n".join(f"left out: {', '.join(left)}; {why}" for why, left in without.items()) or None


@dataclass(frozen=True)
class Trials:
    """What is tried on simulated silos before a figure's own runs: the methods with their settings, and their sweep."""

    methods: SweepConfig
    sweep: SweepConfig


def load_trials(name: str, figure: FigureConfig, overrides: Sequence[str] = ()) -> Trials | None:
    """None for a figure without settings to choose. Raises InputError, as `load_reproduction`."""
    if figure.chosen is None:
        return None
    methods = _sweep(name, figure, f"{figure.name}-simulated", figure.set, overrides, figure.chosen.simulated)
    return Trials(methods, to_try(methods, figure.grid, figure.chosen.seeds))


def choose(
    home: Home,
    name: str,
    figure: FigureConfig,
    target: SweepConfig,
    trials: Trials,
    results: Sequence[RunResult],
    failed: Sequence[str] = (),
) -> tuple[SweepConfig, list[Choice]]:
    """The figure's sweep with the settings that `results`, of the trials, choose, which settings.json and settings.md
    in the figure's folder tell. `failed`: runs of the trials without a result. Raises InputError."""
    if figure.chosen is None:
        return target, []
    made = choices(trials.methods, figure.grid, figure.chosen, results, failed, RecordedRuns(home).run)
    folder = _folder(home, name, figure)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "settings.json", jsonable(choices_json(made)))
    write_atomically(folder / "settings.md", choices_table(made).encode())
    return with_choices(target, figure.grid, made), made


def largest(figure: FigureConfig, target: SweepConfig, trials: Trials | None) -> tuple[ExperimentConfig, ...]:
    """All that drawing the figure may run. Of settings yet to be chosen the first ones stand for all."""
    if trials is None:
        return target.cells()
    return trials.sweep.cells() + with_choices(target, figure.grid, first_choices(target, figure.grid)).cells()


def _folder(home: Home, name: str, figure: FigureConfig) -> Path:
    return home.reproductions / name / figure.name


def _sweep(
    name: str, figure: FigureConfig, called: str, keys: Mapping[str, Any], overrides: Sequence[str], base: str | None
) -> SweepConfig:
    folder = PAPERS / name
    own = [] if base is None else [f"base={json.dumps(str(folder / base))}"]
    own += [f"{key}={json.dumps(value)}" for key, value in keys.items()]
    sweep = load_sweep(folder / figure.sweep, [f"name={name}-{called}", *own, *overrides])
    return sweep if figure.chosen is None else applying(sweep, figure.chosen.without)


def _files(figure: FigureConfig, folder: str) -> dict[str, Any]:
    """Keys of `data` for a figure of files, which are looked at. Raises InputError."""
    if figure.images is not None:
        load_labels(folder, figure.images)
        return {"data.source": "mnist", "data.flavour": figure.images, "data.folder": folder}
    source = "tables"
    if figure.records == "insurance":
        source = "regression"
        load_insurance(folder)
    elif figure.records is not None:
        check_table(figure.records, folder)
    return {"data.source": source, "data.table": figure.records, "data.folder": folder}


def draw(
    home: Home,
    name: str,
    figure: FigureConfig,
    cells: Sequence[ExperimentConfig],
    results: Sequence[RunResult],
    chosen: Sequence[Choice] = (),
) -> Path:
    """Writes plot, table.json and table.md of a figure into `reproductions/<name>/<figure>` and returns the folder.

    A table has no plot. With patience there are results of the chosen cells alone. Raises InputError for results that
    do not make the figure.
    """
    came, runs = {result.run for result in results}, RecordedRuns(home)
    cells = [cell for cell in cells if runs.run(cell) in came]
    folder = _folder(home, name, figure)
    if figure.table is not None:
        draw_table(folder, figure.table, table_cells(figure.table, cells, results))
    elif figure.curves:
        parts = [
            draw_curves(folder, plotted, figure.title, curves(home, plotted, cells, results))
            for plotted in figure.curves
        ]
        write_atomically(folder / "table.md", "\n".join(parts).encode())
    else:
        made = points(cells, results, figure.points, home)
        found = draw_points(folder, figure.points, figure.title, figure.baseline, made)
        if chosen and found:
            rows = rows_of(home, figure.name, cells, results, made, found, chosen)
            write_atomically(folder / "rows.json", jsonable([row.model_dump(mode="json") for row in rows]))
        metric = figure.points.metric
        told = [
            draw_ways(folder, metric, at, figure.title, ways(home, metric, at, cells, results)) for at in figure.along
        ]
        if told:
            write_atomically(folder / "along.md", "\n".join(told).encode())
    return folder
