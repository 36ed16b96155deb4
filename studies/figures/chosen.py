"""The choice of each method's settings on simulated silos, from equally many candidates, at each place of a figure.

The choice reads no silo's records, so it is public, and the results shown afterwards are not the best of several.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field

from fedcore.configfile.reading import unfolded
from fedcore.errors import InputError
from fedcore.experiment.identity import run_id
from fedcore.experiment.result import RunResult
from fedcore.experiment.sweep import SweepConfig, Variant
from fedcore.hyperparameters import Section, Seed
from flows.reports.settings import Run, settings_text
from flows.reports.table import markdown_table

SEED = "seed"


class ChosenConfig(Section):
    """Data and rule of the choice. Each method is a variant of the figure's sweep, with a grid of its settings."""

    data: str
    """Path of the figure's own experiment file, relative to this file's folder."""
    simulated: str
    """Path of the experiment file on simulated silos, where the settings are tried."""
    seeds: tuple[Seed, ...] = Field(tuple(range(1000, 1008)), min_length=2)
    """Seeds of the simulated silos."""
    without: tuple[str, ...] = ()
    """Methods of the sweep that do not apply."""
    by: Literal["error", "train_loss"] = "error"
    """The minimised measure on the simulated silos: error on test records, or mean training loss. The loss needs
    tracking.simulation_metrics."""


@dataclass(frozen=True)
class Choice:
    """A method's chosen settings at one place of a figure. `place`: values by key, for instance of epsilon.

    `error`: mean error or loss on simulated silos; `uncertainty`: its standard error; `tried`: number of settings.
    """

    variant: int
    method: str
    place: Mapping[str, Any]
    settings: Mapping[str, Any]
    error: float
    uncertainty: float
    tried: int
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """The method's keys that all its settings share."""

    @property
    def sections(self) -> dict[str, Any]:
        """The chosen method with all its settings, as sections of an experiment."""
        return unfolded({**self.fixed, **self.settings}, "chosen")


def to_try(methods: SweepConfig, grid: Mapping[str, Sequence[Any]], seeds: Sequence[int]) -> SweepConfig:
    """The sweep of all settings at all places of the figure's grid.

    Raises InputError unless all methods have equally many settings.
    """
    counts = {_name(variant, methods): math.prod(map(len, _own(variant).values())) for variant in methods.variants}
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise InputError(f"sweep {methods.name}: methods have different numbers of settings to choose from: {shown}")
    return methods.over({**_places(grid), SEED: list(seeds)})


def choices(
    methods: SweepConfig,
    grid: Mapping[str, Sequence[Any]],
    config: ChosenConfig,
    results: Sequence[RunResult],
    failed: Collection[str] = (),
    run: Run = run_id,
) -> list[Choice]:
    """For each method and place the settings with the least mean error, or loss.

    `results`: of all cells of `to_try` except those that `failed` (ids of runs), for instance by a step that is too
    long; their settings are not chosen. `run`: gives a cell's run id.

    Raises InputError for results without the measure, and if all settings of a method failed.
    """
    seeds, failed_ones = config.seeds, set(failed)
    errors = {result.run: _value(result, config.by) for result in results}
    found = []
    for number, variant in enumerate(methods.variants):
        for place in _points(_places(grid)):
            tried = []
            for settings in _points(_own(variant)):
                one = _with(methods, [_fixed(variant, settings, place, seeds)])
                runs = [run(cell) for cell in one.cells()]
                if not failed_ones.isdisjoint(runs):
                    continue
                came = [errors.get(run) for run in runs]
                if any(error is None for error in came):
                    raise InputError(f"sweep {methods.name}: settings are chosen by {_BY[config.by]}; there is none")
                tried.append((settings, [error for error in came if error is not None]))
            if not tried:
                raise InputError(f"sweep {methods.name}: all settings of {_name(variant, methods)} failed at {place}")
            settings, came_out = min(tried, key=lambda each: statistics.fmean(each[1]))
            spread = statistics.stdev(came_out) / math.sqrt(len(came_out))
            name, mean = _name(variant, methods), statistics.fmean(came_out)
            found.append(Choice(number, name, place, settings, mean, spread, len(_points(_own(variant))), variant.set))
    return found


def applying(methods: SweepConfig, without: Sequence[str]) -> SweepConfig:
    """The methods without those that do not apply. Raises InputError for an unknown name in `without`."""
    names = [_name(variant, methods) for variant in methods.variants]
    for name in without:
        if name not in names:
            raise InputError(f"sweep {methods.name}: without names {name!r}; there are: {', '.join(names)}")
    left = [variant for variant, name in zip(methods.variants, names, strict=True) if name not in without]
    return methods.model_copy(update={"variants": tuple(left)})


def first_choices(methods: SweepConfig, grid: Mapping[str, Sequence[Any]]) -> list[Choice]:
    """The first settings of each method at each place, in place of a choice that was not made yet."""
    return [
        Choice(number, _name(variant, methods), place, _points(_own(variant))[0], math.nan, math.nan, 0, variant.set)
        for number, variant in enumerate(methods.variants)
        for place in _points(_places(grid))
    ]


def with_choices(target: SweepConfig, grid: Mapping[str, Sequence[Any]], chosen: Sequence[Choice]) -> SweepConfig:
    """The figure's sweep: each method with its chosen settings at each place, at the figure's seeds."""
    seeds = list(grid[SEED])
    variants = [_fixed(target.variants[each.variant], each.settings, each.place, seeds) for each in chosen]
    return _with(target, variants)


def registered_choices(
    target: SweepConfig,
    grid: Mapping[str, Sequence[Any]],
    published: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any]]],
) -> list[Choice]:
    """Choices of a publication. `published`: method, place and settings of each.

    Raises InputError for a method that the figure's sweep lacks, and for a place or settings outside its grid.
    """
    names = [_name(variant, target) for variant in target.variants]
    found = []
    for method, place, settings in published:
        if method not in names:
            raise InputError(f"sweep {target.name}: published settings are of {method!r}; there are {', '.join(names)}")
        number = names.index(method)
        variant = target.variants[number]
        if place not in _points(_places(grid)) or settings not in _points(_own(variant)):
            raise InputError(f"sweep {target.name}: settings of {method} at {dict(place)} are not in its grid")
        found.append(Choice(number, method, place, settings, math.nan, math.nan, 0, variant.set))
    return found


def choices_table(chosen: Sequence[Choice]) -> str:
    """The choices as a table of Markdown."""
    keys = list(dict.fromkeys(key for each in chosen for key in each.place))
    columns: dict[str, list[str]] = {"method": [each.method for each in chosen]}
    columns |= {key.rpartition(".")[2]: [str(each.place[key]) for each in chosen] for key in keys}
    columns["settings"] = [settings_text(each.settings) for each in chosen]
    columns["simulated error"] = [f"{each.error:.4f} ± {each.uncertainty:.4f}" for each in chosen]
    columns["of"] = [str(each.tried) for each in chosen]
    return markdown_table(columns)


def choices_json(chosen: Sequence[Choice]) -> list[dict[str, Any]]:
    """The choices as plain values."""
    return [
        {
            "method": each.method,
            **each.place,
            "settings": dict(each.settings),
            "error": each.error,
            "uncertainty": each.uncertainty,
            "tried": each.tried,
        }
        for each in chosen
    ]


_BY = {"error": "errors on public test data", "train_loss": "tracking.simulation_metrics, the mean loss"}


def _value(result: RunResult, by: Literal["error", "train_loss"]) -> float | None:
    if by == "error":
        return result.error
    return None if result.simulation is None else result.simulation.get("train_loss")


def _places(grid: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    return {key: list(values) for key, values in grid.items() if key != SEED}


def _own(variant: Variant) -> dict[str, list[Any]]:
    return variant.grid or {}


def _points(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def _fixed(variant: Variant, settings: Mapping[str, Any], place: Mapping[str, Any], seeds: Sequence[int]) -> Variant:
    return variant.model_copy(update={"set": {**variant.set, **settings, **place}, "grid": {SEED: list(seeds)}})


def _with(sweep: SweepConfig, variants: Sequence[Variant]) -> SweepConfig:
    return sweep.model_copy(update={"variants": tuple(variants), "grid": {}})


def _name(variant: Variant, sweep: SweepConfig) -> str:
    """The name of the variant's method. Raises InputError for a variant without one."""
    method = variant.set.get("algorithm")
    name = method.get("name") if isinstance(method, Mapping) else variant.set.get("algorithm.name")
    if not isinstance(name, str):
        raise InputError(f"sweep {sweep.name}: a variant sets no algorithm.name: {json.dumps(variant.set)[:100]}")
    return name
