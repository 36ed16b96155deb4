"""Sweeps: a base experiment, variants and a grid, read from a file and expanded to the experiments of all cells."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from fedcore.configfile.reading import by_depth, lists, merged, put, read_yaml, unfolded, validated
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.loading import load_experiment
from fedcore.experiment.patience import Ladder, PatienceConfig, ladders
from fedcore.hyperparameters import Section
from fedcore.limits import MOST_SWEPT
from fedcore.paths import absolute, path_keys, with_paths


def _absolute(values: Any) -> Any:
    """A part of an experiment, validated later, with its paths made absolute."""
    return values if values is None else with_paths(values, path_keys(ExperimentConfig), absolute)


Part = Annotated[dict[str, Any], AfterValidator(_absolute)]
Grid = Annotated[dict[str, list[Any]], AfterValidator(_absolute)]


class Variant(Section):
    """One kind of cell: values that replace the base's, and its own grid in place of the sweep's."""

    set: Part = Field(default_factory=dict)
    grid: Grid | None = None


class SweepConfig(Section):
    """A sweep: every variant at every point of the grid, over a base experiment."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,60}$")
    base: Part = Field(default_factory=dict)
    """An experiment; variants and grid fill in the rest."""
    variants: tuple[Variant, ...] = (Variant(),)
    grid: Grid = Field(default_factory=dict)
    """Lists of values by dotted key, for instance privacy.epsilon: [1, 2]."""
    patience: PatienceConfig | None = None
    """Runs only the largest surviving value of one key to its end; null: runs every cell."""

    def cells(self, source: str = "sweep") -> tuple[ExperimentConfig, ...]:
        """The experiments, in order of variants and grid. Raises InputError naming the key and the cell."""
        return _expanded(_SweepKey(repr(self), self), source)[0]

    def ladders(self, source: str = "sweep") -> tuple[Ladder, ...]:
        """The ladders of cells from which patience chooses; none without patience. Errors as `cells`."""
        return _expanded(_SweepKey(repr(self), self), source)[1]

    @property
    def repeats(self) -> bool:
        """True if each firing of a schedule is a new repetition. Raises InputError if cells differ in that."""
        scheduled = {cell.orchestration.scheduled for cell in self.cells()}
        if len(scheduled) > 1:
            raise InputError(f"sweep {self.name}: orchestration.scheduled must be the same in all cells")
        return scheduled == {"repetition"}

    def repeated(self, repetition: int) -> SweepConfig:
        """The sweep with this repetition of every cell. Raises InputError if a cell sets its own."""
        made = self.model_copy(update={"base": {**self.base, "repetition": repetition}})
        if any(cell.repetition != repetition for cell in made.cells()):
            raise InputError(
                f"sweep {self.name}: orchestration.scheduled = repetition counts repetitions, and its variants or grid "
                "say them too: leave one out"
            )
        return made

    def over(self, grid: Mapping[str, list[Any]]) -> SweepConfig:
        """The sweep with every variant at every point of this grid, too."""
        grids = [self.grid if variant.grid is None else variant.grid for variant in self.variants]
        variants = [
            variant.model_copy(update={"grid": {**own, **grid}})
            for variant, own in zip(self.variants, grids, strict=True)
        ]
        return self.model_copy(update={"variants": tuple(variants)}) if grid else self


@dataclass(frozen=True)
class _SweepKey:
    """Cache key of a sweep. `text` identifies it: in it 1, 1.0 and "1" are three values."""

    text: str
    sweep: SweepConfig = field(compare=False)


@lru_cache(maxsize=8)
def _expanded(key: _SweepKey, source: str) -> tuple[tuple[ExperimentConfig, ...], tuple[Ladder, ...]]:
    """Cells and ladders, cached: a launch needs them several times, and there may be thousands."""
    sweep, found = key.sweep, dict[str, ExperimentConfig]()
    grids = [sweep.grid if variant.grid is None else variant.grid for variant in sweep.variants]
    if (count := sum(math.prod(len(values) for values in grid.values()) for grid in grids)) > MOST_SWEPT:
        raise InputError(f"{source}: variants and grid make {count:,} cells, more than {MOST_SWEPT:,}; leave some out")
    for number, variant in enumerate(sweep.variants):
        grid = variant.grid if variant.grid is not None else sweep.grid
        for point in _points(grid):
            values = merged(merged({"name": sweep.name}, sweep.base), unfolded(variant.set, source))
            for name, value in point.items():
                put(values, name.split("."), value, source)
            where = ", ".join(f"{name}={value}" for name, value in point.items())
            config = validated(ExperimentConfig, values, f"{source}, variant {number + 1} ({where})")
            found.setdefault(config.model_dump_json(), config)
    if not found:
        raise InputError(f"{source}: the sweep has no cell; a list in its grid, or its variants, are empty")
    cells = tuple(found.values())
    return cells, () if sweep.patience is None else ladders(cells, sweep.patience, source)


def load_sweep(path: str | Path, overrides: Sequence[str] = ()) -> SweepConfig:
    """The sweep of a YAML file, or of an experiment's file and overrides with several values, such as seed=0,1,2.

    Overrides of an experiment's keys reach every cell, or are refused; those with several values extend the grid. A key
    that a grid or a variant sets cannot be overridden. A variant's null stays: it removes the key. Raises InputError.
    """
    path = Path(path)
    grid, overrides = lists(overrides)
    own = [text for text in overrides if text.partition("=")[0].split(".")[0] in SweepConfig.model_fields]
    values = read_yaml(path, own)
    if "algorithm" in values or "privacy" in values:
        if not grid:
            raise InputError(
                f"{path}: this is one experiment, not a sweep; use `fedcore run {path}`, or say what to vary: "
                f"`fedcore sweep {path} seed=0,1,2`"
            )
        values = {"name": values.get("name", "experiment"), "base": values}
    base = values.get("base", {})
    if isinstance(base, str):
        base = read_yaml(Path(base) if Path(base).is_absolute() else path.parent / base, ())
    if not isinstance(base, dict):
        raise InputError(f"{path}: base must be a mapping or the path of an experiment's YAML file")
    for key, value in by_depth([text for text in overrides if text not in own]):
        for section in (values, *values.get("variants", [])):
            if isinstance(section, dict):
                _override_cells(section, key, value, str(path))
        put(base, key, value, "command line")
    sweep = validated(SweepConfig, {**values, "base": base}, str(path))
    if sweep.grid and sweep.variants and all(variant.grid is not None for variant in sweep.variants):
        raise InputError(f"{path}: no variant uses the sweep's grid ({', '.join(sweep.grid)}): each has one of its own")
    return sweep.over(grid)


def load_cells(path: str | Path, overrides: Sequence[str] = ()) -> tuple[ExperimentConfig, ...]:
    """The experiments of a YAML file: one, or a sweep's cells. Raises InputError."""
    if is_sweep(path, overrides):
        return load_sweep(path, overrides).cells(str(path))
    return (load_experiment(path, overrides),)


def is_sweep(path: str | Path, overrides: Sequence[str] = ()) -> bool:
    """True if a YAML file with overrides makes more than one experiment. Raises InputError."""
    values = read_yaml(Path(path), ())
    return "variants" in values or "grid" in values or bool(lists(overrides)[0])


_ABSENT = object()


def _override_cells(section: dict[str, Any], key: list[str], value: Any, source: str) -> None:
    """Sets a key wherever a grid's value or a variant's `set` replaces the base's section that holds it.

    `section`: the sweep or a variant, changed in place, without changing values that it shares by YAML's anchors.
    Raises InputError if the key is set there.
    """
    name = ".".join(key)
    grid, own = section.get("grid"), section.get("set")
    if isinstance(grid, dict):
        section["grid"] = {swept: _overridden_points(swept, grid[swept], key, value, source) for swept in grid}
    if isinstance(own, dict) and key[0] in (replaced := unfolded(own, source)):
        section["set"] = _overridden(replaced, key, value, name, source)


def _overridden_points(swept: str, points: Any, key: list[str], value: Any, source: str) -> Any:
    """The points of a grid's key; if they are sections that hold the overridden key, copies with the override."""
    path, name = swept.split("."), ".".join(key)
    if path == key:
        raise InputError(f"{source}: {name} is in the sweep's grid; override it there: grid.{name}=[...]")
    if path != key[: len(path)] or not isinstance(points, list):
        return points
    return [_overridden(point, key[len(path) :], value, name, source) for point in points]


def _overridden(values: Any, key: list[str], new: Any, name: str, source: str) -> Any:
    """A copy of a section with the key set; the section itself where its own value is null."""
    if not isinstance(values, dict):
        return values
    at: Any = values
    for part in key:
        at = at.get(part, _ABSENT) if isinstance(at, dict) else _ABSENT
    if at is None:
        return values
    if at is not _ABSENT:
        raise InputError(f"{source}: {name} = {at!r} is set by the sweep itself; change it in a copy of the file")
    result = dict(values)
    put(result, key, new, "command line")
    return result


def _points(grid: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))
