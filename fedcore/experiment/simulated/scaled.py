"""Simulated silos' records, prepared with constants of `data.scaling` that the simulation computes as a run does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedcore.algorithms import SecondMoments
from fedcore.algorithms.statistics.pooled import pooled_noise
from fedcore.data.columns import count_rows
from fedcore.data.constants.public_scales import whitening_of
from fedcore.data.constants.scaling import PublicScaling, ReleasedScaling, Scales, with_range
from fedcore.data.constants.whitening import Whitening, longest_prepared, number_places
from fedcore.data.records import Records, prepare_records
from fedcore.data.schema import Schema
from fedcore.data.silo_file import format_of
from fedcore.data.sources.made_up.assumed import Made
from fedcore.data.tabular import FilesData
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.released.scales import standards_of
from fedcore.experiment.statistics import plan_statistics
from fedcore.planning.problem import SiloFacts
from fedcore.randomness import draws
from fedcore.silo.answers.column_moments import column_moment_sum
from fedcore.silo.answers.moments import bound_of, moment_sum


@dataclass(frozen=True, eq=False)
class World:
    """Records of each silo, by name, and test records, as features of a schema; `whitening`: the one applied."""

    schema: Schema
    silos: Mapping[str, Made]
    test: Made
    whitening: Whitening | None = None

    @property
    def facts(self) -> tuple[SiloFacts, ...]:
        return tuple(SiloFacts(name, len(made.labels)) for name, made in self.silos.items())

    def records(self, made: Made, config: ExperimentConfig) -> Records:
        """The records `made`, prepared for the config's model."""
        model = config.model
        pairs = config.data.label_values is not None and not model.class_ids
        labels = 2.0 * made.labels - 1.0 if pairs else made.labels
        return prepare_records(
            made.features,
            labels,
            model.bias,
            model.feature_bound,
            normalise=model.normalise,
            longest=longest_prepared(self.schema, self.whitening),
        )


def scaled_world(config: ExperimentConfig, world: World, seed: int, known: Whitening | None = None) -> World:
    """The world with the config's constants; centres and scales of a public file are applied already.

    Released constants come from the world's own silos, with the planned noise. `known`: whitening by the public file.
    None: whitening by equally many of the world's own test records, since made-up columns have other correlations.
    """
    data = config.data
    scaling = data.scaling if isinstance(data, FilesData) else None
    if isinstance(scaling, ReleasedScaling):
        return _with_released(config, scaling, world, seed)
    if not isinstance(data, FilesData) or not isinstance(scaling, PublicScaling) or not scaling.whiten:
        return world
    if known is None:
        names = tuple(column.name for column in with_range(data.described or ()))
        count = count_rows(scaling.path, format_of(scaling.path, "data.scaling.path"), names)
        chosen = draws(b"fedcore made up", seed, count, "whitening").permutation(len(world.test.labels))[:count]
        starts = number_places(world.schema)
        rows = world.test.features[chosen][:, [starts[name] for name in names]]
        known = whitening_of(names, scaling.limit, rows)
    return _whitened(world, known)


def _whitened(world: World, whitening: Whitening | None) -> World:
    """The world with whitened records; computed once for all points of a grid."""
    if whitening is None:
        return world

    def whitened(made: Made) -> Made:
        return Made(whitening(made.features, world.schema), made.labels)

    silos = {name: whitened(made) for name, made in world.silos.items()}
    return replace(world, silos=silos, test=whitened(world.test), whitening=whitening)


def _with_released(config: ExperimentConfig, scaling: ReleasedScaling, world: World, seed: int) -> World:
    ranged, starts = with_range(world.schema), number_places(world.schema)
    places = [starts[column.name] for column in ranged]
    plan = plan_statistics(config, world.facts, len(ranged))
    values = np.concatenate([made.features for made in world.silos.values()])[:, places]
    (phase,) = plan.phases
    sums = moment_sum if phase.question.kind in SecondMoments.asks else column_moment_sum
    moments = sums(values, bound_of(phase)) / len(values)
    moments += pooled_noise(plan) * draws(b"fedcore made up", seed, len(ranged), "moments").standard_normal(
        len(moments)
    )
    centres, scales, matrix = standards_of(plan, len(ranged), moments)
    made_of = Scales.of_features(ranged, centres, scales, matrix)
    released = made_of(world.schema, scaling.limit)

    def scaled(made: Made) -> Made:
        features = made.features.copy()
        for place, centre, scale in zip(places, centres, scales, strict=True):
            features[:, place] = np.clip((features[:, place] - centre) / scale, -scaling.limit, scaling.limit)
        for column in released:
            if column.marked and column.categories is None:
                place = starts[column.name]
                features[features[:, place + 1] == 1.0, place] = column.filled
        return Made(features, made.labels)

    silos = {name: scaled(made) for name, made in world.silos.items()}
    made_so = World(released, silos, scaled(world.test))
    return _whitened(made_so, made_of.whitening(world.schema, scaling.limit))
