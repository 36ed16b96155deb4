"""Real labels of a softplus network from a public seed: nonconvex, with a known solution.

A silo's records do not depend on the number of silos. A change of the generated records must raise
`generators.VERSION`. Source: spec diff2, section 6, the stand-in for the paper's tables.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from pydantic import Field

from fedcore.arrays import Matrix, Vector
from fedcore.data.sources.streams import silo_names, stream
from fedcore.data.table import Generated, Table
from fedcore.draws.elementary import product, softplus
from fedcore.draws.stream import Draws
from fedcore.hyperparameters import Count, Factor, Section
from fedcore.limits import MOST_CELLS, MOST_SILOS, MOST_WEIGHTS

_TEACHER, _SILO, _TEST = 112, 113, 114  # purposes of random streams
RANGE = (-5.0, 5.0)
"""Public range of labels; few lie beyond. At the defaults their root mean square is 0.25 to 2.3 over 100 seeds, with
median 0.6."""


class TeacherData(Section):
    """Independent standard normal features, and noisy outputs of a network drawn by the seed.

    Records have no bounded norm. Set `model.feature_bound` to 3 or 4 times sqrt(features), since longer records are
    scaled down.
    """

    source: Literal["teacher"] = "teacher"
    silos: Count = Field(10, ge=1, le=MOST_SILOS)
    records: Count = Field(1650, ge=2, le=MOST_CELLS)
    """Records of each silo."""
    features: Count = Field(8, ge=1, le=MOST_WEIGHTS)
    """Features of a record, without the bias column."""
    hidden: Count = Field(10, ge=1, le=MOST_WEIGHTS)
    """Softplus units of the teacher."""
    noise: Factor = Field(0.1, ge=0)
    """Standard deviation of the noise in a label."""
    heterogeneity: Factor = Field(0.0, ge=0)
    """Distance of each silo's mean record from 0, in a direction of its own; 0: all silos alike."""
    test_records: Count = Field(2000, ge=1, le=MOST_CELLS)

    @property
    def label_values(self) -> None:
        """None: the label is a number."""
        return None

    @property
    def label_range(self) -> tuple[float, float]:
        """Public range of the label, which is clipped to it and mapped to -1 to 1 for training."""
        return RANGE


def teacher(data: TeacherData, seed: int) -> Generated:
    """y = a' (softplus(W x + b) - log 2) + noise; W ~ N(0, 1/features), a ~ N(0, 1/hidden).

    b ~ N(0, 1). Silos `silo-000`, ... hold `records` each; test records come from all silos' distributions in turn.
    """
    names = silo_names(data.silos)
    weights = _Teacher.drawn(stream(seed, _TEACHER), data.features, data.hidden)
    means = [_mean(stream(seed, _SILO, index), data) for index in range(data.silos)]
    tables = {}
    for index, name in enumerate(names):
        rng = stream(seed, _SILO, index)
        mean = _mean(rng, data)  # the silo's own, drawn first
        tables[name] = weights.table(mean + rng.standard_normal((data.records, data.features)), data.noise, rng)
    rng = stream(seed, _TEST)
    centres = np.array(means)[np.arange(data.test_records) % data.silos]
    test = weights.table(centres + rng.standard_normal((data.test_records, data.features)), data.noise, rng)
    return Generated(tuple(f"x{j}" for j in range(data.features)), "label", tables, test)


def _mean(rng: Draws, data: TeacherData) -> Vector:
    direction = rng.standard_normal(data.features)
    return np.asarray(data.heterogeneity * direction / np.sqrt(product(direction[None, :], direction[:, None])[0, 0]))


class _Teacher:
    """Weights of the network: `first` (hidden, features), `shift` (hidden,), `second` (hidden,)."""

    def __init__(self, first: Matrix, shift: Vector, second: Vector) -> None:
        self.first, self.shift, self.second = first, shift, second

    @classmethod
    def drawn(cls, rng: Draws, features: int, hidden: int) -> _Teacher:
        first = rng.standard_normal((hidden, features)) / math.sqrt(features)
        return cls(first, rng.standard_normal(hidden), rng.standard_normal(hidden) / math.sqrt(hidden))

    def table(self, X: Matrix, noise: float, rng: Draws) -> Table:
        hidden = softplus(product(X, self.first.T) + self.shift) - math.log(2.0)
        outputs = product(hidden, self.second[:, None])[:, 0]
        return Table(X, outputs + noise * rng.standard_normal(len(X)))
