"""Tuning without private records: tries a grid of settings on simulated silos under the run's own noise.

Tuning reads no silo and spends no budget. So the choice is public, and may be committed before the first run.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from fedcore.configfile.reading import put, validated
from fedcore.data.constants.whitening import Whitening
from fedcore.data.dataset import Dataset
from fedcore.data.file_sources import schema_beforehand
from fedcore.data.schema import Schema, feature_names
from fedcore.data.sources.made_up.assumed import Assumptions, Made, made_up
from fedcore.data.tabular import Tabular
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.evaluation import measures
from fedcore.experiment.experiment import Experiment, make_plan
from fedcore.experiment.simulated.resampled import resampled
from fedcore.experiment.simulated.scaled import World, scaled_world
from fedcore.federation.in_process import InProcess
from fedcore.federation.rounds import rounds
from fedcore.ledger.memory import MemoryLedger
from fedcore.planning.problem import SiloFacts
from fedcore.silo.keys import SeededKeys
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.site import Site

TEST_RECORDS = 2000
"""Number of test records of a simulation, over all silos."""
CLIPS = (1.0, 0.5, 0.25, 0.1)
"""Clipping bounds, relative to the loss's own bound on a record's gradient, or to the record bound without one."""
DIAMETERS = (20.0, 80.0)
"""Diameters of the domain: the default, and one for records that fill a small part of their norm bound."""
STEPS = tuple(2.0**k for k in range(-1, 8))
ROUNDS = (10, 40, 160)
LAMS = (0.001, 0.01, 0.1)
SECOND_ORDER = {"shift": (0.03, 0.3, 1.0), "scale": (1.0, 4.0, 16.0)}
"""Values in place of a step, by key of noised-newton and dp-fcrn."""
CURVATURES = (1.0, 1 / 4, 1 / 16)
"""Smoothness, relative to the worst case, where the config has a public number for it. Diverging points drop out."""

MANY = 100
"""Number of points beyond which all are tried on `FEW` simulations first."""
FEW = 5
BEST = 1 / 3
"""Fraction of the points that are then tried on all simulations."""

Point = dict[str, Any]
"""Values by dotted key."""


@dataclass(frozen=True)
class Trial:
    """A point of the grid: its mean error over the simulations, with the standard error of that mean."""

    point: Point
    error: float
    uncertainty: float


@dataclass(frozen=True)
class Tuning:
    """Result of a search: `trials` of the points that were tried on all simulations, the best first.

    `baseline`: mean error of a constant answer. `tried`: number of all points, with those dropped after `FEW`.
    """

    trials: tuple[Trial, ...]
    baseline: float
    tried: int

    @property
    def best(self) -> Trial:
        return self.trials[0]


def default_grid(config: ExperimentConfig) -> dict[str, list[Any]]:
    """The default grid of a method: clipping bounds, domains, step lengths or their substitutes, rounds and lambda.

    Domains are tried for every method and model: all project onto W, and no noise grows with W. Keys that are left to a
    theorem are not tried.
    """
    bound = config.model.loss.lipschitz * config.model.record_bound
    scale = bound if math.isfinite(bound) else config.model.record_bound
    grid: dict[str, list[Any]] = {
        "model.clip": [round(part * scale, 6) for part in CLIPS],
        "model.diameter": list(DIAMETERS),
    }
    method: Any = config.algorithm
    keys = {field.name for field in fields(method)}
    if "step" in keys and "shift" not in keys and isinstance(method.step, float):  # a Newton step is a whole one
        grid["algorithm.step"] = list(STEPS)
    if "rounds" in keys and isinstance(method.rounds, int):
        grid["algorithm.rounds"] = list(ROUNDS)
    if "lam" in keys:
        grid["algorithm.lam"] = list(LAMS)
    if "average" in keys and method.average in ("uniform", "last"):
        grid["algorithm.average"] = ["last"]
    grid |= {f"algorithm.{key}": list(values) for key, values in SECOND_ORDER.items() if key in keys}
    curvature = config.model.loss.smoothness_within(config.model.reach) * config.model.record_bound**2
    if isinstance(getattr(method, "smoothness", None), float) and math.isfinite(curvature):
        grid["algorithm.smoothness"] = [round(part * curvature, 6) for part in CURVATURES]
    return grid


def tune(
    config: ExperimentConfig,
    grid: Mapping[str, Sequence[Any]],
    assumed: Assumptions,
    simulations: int,
    silos: Sequence[SiloFacts] | None = None,
    public: Made | None = None,
    after: Callable[[int, int], None] = lambda done, most: None,
) -> Tuning:
    """Tries each point of the grid on `simulations` sets of simulated silos, the same sets for all points.

    If there are more than MANY points, all are tried on FEW sets first, and the best third on all sets.

    `silos`: names and numbers of records of simulated silos; None: those of the config's data. `public`: records from
    which silos are drawn, in place of `assumed`, as features with the schema's ranges. Where centres and scales are
    released, the simulated silos release theirs, with the planned noise. `after`: called after each point with the
    trainings done and a bound on their total. Raises InputError for a config without a schema, and where no point can
    be planned.
    """
    schema, _ = _described(config)
    if schema is None:
        raise InputError("settings are tried on records that are generated from data.features, a schema; there is none")
    facts = make_plan(config).problem.silos if silos is None else silos
    classes = None if config.data.label_values is None else len(config.data.label_values)
    worlds = [
        World(schema, *made_up(schema, facts, classes, assumed, TEST_RECORDS, seed))
        if public is None
        else World(schema, *resampled(public, facts, seed))
        for seed in range(simulations)
    ]
    prepared: dict[str, list[World]] = {}
    refused: list[InputError] = []

    def pairs(point: Point, seeds: range) -> list[tuple[float, float]] | None:
        """Errors on these simulations, with and without a model; None for a point that cannot be tried."""
        try:
            tried = with_values(config, point)
            key = tried.model_dump_json(include={"data", "privacy"})
            if key not in prepared:
                known = None if public is None else _described(tried)[1]
                prepared[key] = [scaled_world(tried, world, seed, known) for seed, world in enumerate(worlds)]
            return [_trial(tried, prepared[key][seed], seed) for seed in seeds]
        except InputError as error:  # a step too long for the method, or a model that diverged
            refused.append(error)
            return None

    every = list(points(grid))
    first = FEW if len(every) > MANY and simulations > FEW else simulations
    done, most = 0, len(every) * first + math.ceil(BEST * len(every)) * (simulations - first)

    def counted(point: Point, seeds: range) -> list[tuple[float, float]] | None:
        nonlocal done
        errors = pairs(point, seeds)
        done += len(seeds)
        after(done, most)
        return errors

    found = [(point, errors) for point in every if (errors := counted(point, range(first))) is not None]
    if first < simulations:
        found.sort(key=lambda each: statistics.fmean(error for error, _ in each[1]))
        best = found[: math.ceil(BEST * len(found))]
        most = done + len(best) * (simulations - first)
        rest = [(point, errors, counted(point, range(first, simulations))) for point, errors in best]
        found = [(point, errors + more) for point, errors, more in rest if more is not None]
    if not found:
        raise refused[-1] if refused else InputError("the grid has no point")
    trials = [_summary(point, [error for error, _ in each]) for point, each in found]
    baseline = statistics.fmean(alone for _, alone in found[0][1])
    return Tuning(tuple(sorted(trials, key=lambda trial: trial.error)), baseline, len(every))


def _described(config: ExperimentConfig) -> tuple[Schema | None, Whitening | None]:
    """The schema of simulated records, with ranges in place of constants that silos have not released yet."""
    return schema_beforehand(config.data) if isinstance(config.data, Tabular) else (None, None)


def _summary(point: Point, errors: Sequence[float]) -> Trial:
    spread = statistics.stdev(errors) / math.sqrt(len(errors)) if len(errors) > 1 else math.inf
    return Trial(point, statistics.fmean(errors), spread)


def points(grid: Mapping[str, Sequence[Any]]) -> Iterator[Point]:
    """All combinations of the grid's values, in the order of the keys."""
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def with_values(config: ExperimentConfig, point: Point) -> ExperimentConfig:
    """The config with the values of a point. Raises InputError if they do not fit."""
    values = config.model_dump(mode="json")
    for key, value in point.items():
        put(values, key.split("."), value, "grid")
    return validated(ExperimentConfig, values, "grid")


def _trial(config: ExperimentConfig, world: World, seed: int) -> tuple[float, float]:
    """Error on the world's test records of a model trained on its silos, and the error without a model."""
    config = config.model_copy(update={"seed": seed})
    names = feature_names(world.schema)
    dataset = Dataset("made-up", (), world.facts, len(names) + int(config.model.bias), names, 1.0, None, None)
    experiment = Experiment.of(config, dataset)
    site = Site(
        [
            # Persons of one row each: the numbers of rows of silos' persons are not public.
            PrivateSilo(name, replace(records, person=config.person), SeededKeys(seed), MemoryLedger(name))
            for name, records in ((name, world.records(made, config)) for name, made in world.silos.items())
        ]
    )
    backend = InProcess(site, experiment.agreement)
    backend.open()
    method = experiment.context.method
    last = method.init(experiment.start())
    for _, _, last in rounds(experiment.context, last, backend.ask):  # noqa: B007, B020
        pass
    found = measures(experiment.model, method.output(last), world.records(world.test, config), config.data.label_values)
    if "test_error" in found:
        return found["test_error"], found["majority_error"]
    return found["test_rmse"], found["mean_rmse"]
