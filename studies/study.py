"""A study: the figures of a paper, each a sweep whose grid may contain hyperparameters to choose.

`studies/conf/<name>/figures.yaml` registers a study.
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
from studies.figures.chosen import (
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
from studies.figures.curves import CurvesConfig
from studies.figures.paper_table import TableConfig
from studies.figures.points import PointsConfig
from tasks.result_file import jsonable, write_atomically

STUDIES = Path(__file__).with_name("conf")


class FigureConfig(Section):
    """A figure: points with one curve per method, or a table, or curves over rounds."""

    name: str = Field(pattern=r"^[a-z0-9-]+$")
    title: str
    baseline: str | None = None
    """A curve from which the others' differences in the same trials are shown."""
    sweep: str
    """Path of the sweep's file, relative to this file's folder."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Keys of an experiment, with dots, set in the sweep's base."""
    grid: dict[str, list[Any]] = Field(default_factory=dict)
    """Lists of values by dotted key, added to the grid of each of the sweep's variants."""
    images: Flavour | None = None
    """Images in IDX files; the figure is left out if the home has no folder of this name."""
    records: Literal["insurance"] | FileTable | None = None
    """A table in files; the figure is left out if the home has no folder of this name."""
    points: PointsConfig = PointsConfig()
    """The points' error and axis, and the keys that distinguish curves of one method."""
    chosen: ChosenConfig | None = None
    """Choice of settings on simulated silos, before the figure's own runs."""
    along: tuple[float, ...] = ()
    """Epsilons at which the error along the runs is drawn too; needs tracking.evaluate_every: 1."""
    table: TableConfig | None = None
    """A table of accuracies by two keys, in place of curves over epsilon."""
    curves: tuple[CurvesConfig, ...] = ()
    """Curves over rounds, one plot for each metric, in place of those over epsilon."""


class StudyConfig(Section):
    """A registered study."""

    title: str
    paper: str
    """Authors and year of the paper that the study reproduces, or whose methods it compares."""
    minutes: int = Field(ge=1)
    """Rough duration of the whole study on one core."""
    advice: bool = False
    """True if this study gives the rows behind `fedcore advise`."""
    figures: tuple[FigureConfig, ...] = Field(min_length=1)


def registered() -> dict[str, StudyConfig]:
    """All studies by name. Raises InputError for a file that does not fit."""
    names = sorted(path.parent.name for path in STUDIES.glob("*/figures.yaml"))
    return {name: read_study(name) for name in names}


def read_study(name: str) -> StudyConfig:
    """The registration of a study. Raises InputError for an unknown name, and for a file that does not fit."""
    known = sorted(path.parent.name for path in STUDIES.glob("*/figures.yaml"))
    if name not in known:
        raise InputError(f"no study is called {name!r}; there are: {', '.join(known)}")
    path = STUDIES / name / "figures.yaml"
    return validated(StudyConfig, read_yaml(path, ()), str(path))


def load_study(
    name: str, home: Home, overrides: Sequence[str] = (), only: Sequence[str] = ()
) -> tuple[list[tuple[FigureConfig, SweepConfig]], str | None]:
    """The figures of a study with their sweeps, and a text that lists left-out figures with reasons, or None.

    Overrides apply to every sweep and win over a figure's own keys. `only`: names of figures; none: all. A figure
    whose files are missing is left out. Raises InputError; for missing files if `only` or `data.folder` names them.
    """
    config = read_study(name)
    names = [figure.name for figure in config.figures]
    for unknown in sorted(set(only) - set(names)):
        raise InputError(f"study {name} has no figure {unknown!r}; there are: {', '.join(names)}")
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
                keys |= _files(figure, str(folder))  # raises for a missing file before any cell is run
            except InputError as error:
                if folder.is_dir() or given or figure.name in only:
                    raise
                without.setdefault(str(error), []).append(figure.name)
                continue
        base = None if figure.chosen is None else figure.chosen.data
        sweep = _sweep(name, figure, figure.name, keys, overrides, base)
        drawn.append((figure, sweep if figure.chosen is not None else sweep.over(figure.grid)))
    return drawn, "\n".join(f"left out: {', '.join(left)}; {reason}" for reason, left in without.items()) or None


@dataclass(frozen=True)
class Trials:
    """Trials on simulated silos before a figure's own runs: methods with their candidate settings, and the sweep."""

    methods: SweepConfig
    sweep: SweepConfig


def load_trials(name: str, figure: FigureConfig, overrides: Sequence[str] = ()) -> Trials | None:
    """The trials of a figure; None if it has no settings to choose. Raises InputError as `load_study`."""
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
    """The figure's sweep with the settings chosen by the trials' `results`, and the choices. Raises InputError.

    Writes them to settings.json and settings.md in the figure's folder. `failed`: runs of the trials without a result.
    """
    if figure.chosen is None:
        return target, []
    made = choices(trials.methods, figure.grid, figure.chosen, results, failed, RecordedRuns(home).run)
    folder = figure_folder(home, name, figure)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "settings.json", jsonable(choices_json(made)))
    write_atomically(folder / "settings.md", choices_table(made).encode())
    return with_choices(target, figure.grid, made), made


def largest(figure: FigureConfig, target: SweepConfig, trials: Trials | None) -> tuple[ExperimentConfig, ...]:
    """All cells that drawing the figure may run; the first settings represent those yet to be chosen."""
    if trials is None:
        return target.cells()
    return trials.sweep.cells() + with_choices(target, figure.grid, first_choices(target, figure.grid)).cells()


def figure_folder(home: Home, name: str, figure: FigureConfig) -> Path:
    """A home's folder of a figure's plots and tables."""
    return home.reproductions / name / figure.name


def _sweep(
    name: str, figure: FigureConfig, called: str, keys: Mapping[str, Any], overrides: Sequence[str], base: str | None
) -> SweepConfig:
    folder = STUDIES / name
    own = [] if base is None else [f"base={json.dumps(str(folder / base))}"]
    own += [f"{key}={json.dumps(value)}" for key, value in keys.items()]
    sweep = load_sweep(folder / figure.sweep, [f"name={name}-{called}", *own, *overrides])
    return sweep if figure.chosen is None else applying(sweep, figure.chosen.without)


def _files(figure: FigureConfig, folder: str) -> dict[str, Any]:
    """Keys of `data` for a figure of files. Raises InputError for missing or wrong files."""
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
