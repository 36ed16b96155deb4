"""Records made up from public facts: sizes, schema, assumed signal and heterogeneity.

No real record is read, so a choice made on them has no privacy cost. Their resemblance to the silos' records is an
assumption, and each place that shows such a choice states it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedcore.data.schema import Column, Schema
from fedcore.draws.elementary import product
from fedcore.draws.stream import Draws
from fedcore.hyperparameters import Real, Section
from fedcore.planning.problem import SiloFacts
from fedcore.randomness import draws

_MIDDLES, _SPREAD = 0.3, 0.35
"""For the feature of a number with a range: largest distance of its mean from the middle, and its deviation."""


class Assumptions(Section):
    """Assumptions about unseen records. The defaults are one guess for all kinds of data."""

    signal: Real = Field(0.5, gt=0, le=1)
    """Part of a score's variance that the features explain linearly. The label is the score's sign, largest entry, or
    value. At 0.5 the best classifier of two equal classes errs in a quarter of all cases."""
    heterogeneity: Real = Field(0.5, ge=0, le=10)
    """Deviation between silos: of weights, relative to the common ones; of the score's mean and the columns' means,
    relative to their deviations. 0: all silos alike."""
    correlation: Real = Field(0.3, ge=0, lt=1)
    """Correlation of any two columns, up to its sign."""
    missing: Real = Field(0.1, ge=0, lt=1)
    """Part of missing values, in columns that expect them."""


@dataclass(frozen=True, eq=False)
class Made:
    """Features (n, d) of a schema, and labels (n,): classes from 0, or real ones in -1 to 1."""

    features: NDArray[np.float64]
    labels: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _World:
    """Common parameters of all silos: columns' signs, means and cuts, and scores' weights."""

    signs: NDArray[np.float64]
    middles: NDArray[np.float64]
    cuts: tuple[NDArray[np.float64], ...]
    weights: NDArray[np.float64]


def made_up(
    schema: Schema, silos: Sequence[SiloFacts], classes: int | None, assumed: Assumptions, test: int, seed: int
) -> tuple[dict[str, Made], Made]:
    """Records of each silo, by name, and about `test` test records in proportion to sizes.

    `classes`: number of classes; None for real labels.
    """
    rng = draws(b"fedcore made up", seed, len(schema))
    outputs = 1 if classes is None or classes == 2 else classes
    world = _World(
        rng.choice([-1.0, 1.0], len(schema), replace=True),
        rng.uniform(-_MIDDLES, _MIDDLES, len(schema)),
        tuple(np.sort(rng.standard_normal(max(0, _values(column) - 1))) for column in schema),
        rng.standard_normal((outputs, len(schema))),
    )
    total = sum(silo.n for silo in silos)
    found: dict[str, Made] = {}
    tests: list[Made] = []
    for silo in silos:
        share = max(1, round(test * silo.n / total))
        both = _drawn(schema, silo.n + share, classes, assumed, world, rng)
        found[silo.name] = Made(both.features[: silo.n], both.labels[: silo.n])
        tests.append(Made(both.features[silo.n :], both.labels[silo.n :]))
    return found, Made(np.concatenate([t.features for t in tests]), np.concatenate([t.labels for t in tests]))


def _drawn(schema: Schema, n: int, classes: int | None, assumed: Assumptions, world: _World, rng: Draws) -> Made:
    """Records of one silo: columns with a common factor, weights and means of its own."""
    h, rho = assumed.heterogeneity, assumed.correlation
    own = world.weights + h * rng.standard_normal(world.weights.shape)
    factor = rng.standard_normal((n, 1)) * world.signs
    hidden = np.sqrt(rho) * factor + np.sqrt(1.0 - rho) * rng.standard_normal((n, len(schema)))
    # The variance of own @ hidden under the chosen correlation.
    squares, along = product(own * own, np.ones((own.shape[1], 1)))[:, 0], product(own, world.signs[:, None])[:, 0]
    spread = np.sqrt((1.0 - rho) * squares + rho * (along * along))
    score = np.sqrt(assumed.signal) * product(hidden, own.T) / spread
    score += np.sqrt(1.0 - assumed.signal) * rng.standard_normal(score.shape)
    score += h * rng.standard_normal(score.shape[1])
    seen = hidden + h * rng.standard_normal(len(schema))
    blocks = [
        _features(column, seen[:, j], world.middles[j], world.cuts[j], assumed.missing, rng)
        for j, column in enumerate(schema)
    ]
    if classes is None:
        labels = np.clip(score[:, 0] / 3.0, -1.0, 1.0)
    else:
        labels = (score[:, 0] > 0).astype(float) if classes == 2 else score.argmax(axis=1).astype(float)
    return Made(np.concatenate(blocks, axis=1), labels)


def _features(
    column: Column,
    hidden: NDArray[np.float64],
    middle: float,
    cuts: NDArray[np.float64],
    missing: float,
    rng: Draws,
) -> NDArray[np.float64]:
    """The column's features (n, len(names)) from a latent number of mean 0 and deviation 1."""
    out = np.zeros((len(hidden), len(column.names)))
    gone = rng.random(len(hidden)) < (missing if column.missing is not None else 0.0)
    if column.categories is not None:
        out[np.arange(len(hidden)), np.searchsorted(cuts, hidden)] = 1.0
        out[gone] = 0.0
    else:
        unit = middle + _SPREAD * hidden if column.range is not None else hidden
        most = 1.0 if column.range is not None else column.limit
        out[:, 0] = np.where(gone, column.filled, np.clip(unit, -most, most))
    if column.marked:
        out[:, -1] = gone
    return out


def _values(column: Column) -> int:
    return len(column.categories or ())
