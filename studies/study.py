"""A study: the figures of a paper, each a sweep whose grid may hold hyperparameters to choose, and their drawing.

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
from flows.kept.former_ids import KeptRuns
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


class StudyConfig(Section):
    """A registered study."""

    title: str
    paper: str
    """Authors and year of the paper that the study reproduces, or of which it compares the methods."""
    minutes: int = Field(ge=1)
    """Rough duration of the whole study on one core."""
    advice: bool = False
    """Whether the rows behind `fedcore advise` are those of this study."""
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
    """The figures of a study with their sweeps, and which are left out and why (None: none).

    Overrides go to every sweep and win over a figure's own. `only`: names of figures; none: all. Raises InputError,
    also for files that are not there if their figure, or their folder (`data.folder`), was asked for by name.
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
    """None for a figure without settings to choose. Raises InputError, as `load_study`."""
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
    made = choices(trials.methods, figure.grid, figure.chosen, results, failed, KeptRuns(home).run)
    folder = figure_folder(home, name, figure)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "settings.json", jsonable(choices_json(made)))
    write_atomically(folder / "settings.md", choices_table(made).encode())
    return with_choices(target, figure.grid, made), made


def largest(figure: FigureConfig, target: SweepConfig, trials: Trials | None) -> tuple[ExperimentConfig, ...]:
    """All that drawing the figure may run. Of settings yet to be chosen the first ones stand for all."""
    if trials is None:
        return target.cells()
    return trials.sweep.cells() + with_choices(target, figure.grid, first_choices(target, figure.grid)).cells()


def figure_folder(home: Home, name: str, figure: FigureConfig) -> Path:
    """Where a home keeps what was drawn of a figure."""
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
