"""Logistic data of heterogeneous silos from a public seed, with a chosen spectrum and centre.

A silo's records do not depend on the number of silos. A change of the generated records must raise
`generators.VERSION`.
"""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedcore.arrays import Vector
from fedcore.data.sources.streams import silo_names, stream
from fedcore.data.table import Generated, Table
from fedcore.draws.elementary import exp, log, product
from fedcore.draws.stream import Draws
from fedcore.hyperparameters import Count, Factor, Real, Section
from fedcore.limits import MOST_CELLS, MOST_SILOS, MOST_WEIGHTS

_COMMON, _SILO, _SILO_TEST = 101, 102, 103  # purposes of random streams


class SyntheticData(Section):
    """Logistic data from a seed: each silo has its own mean features and its own weights.

    With more than two classes the labels are multinomial logistic.
    """

    source: Literal["synthetic"] = "synthetic"
    silos: Count = Field(25, ge=1, le=MOST_SILOS)
    records: Count = Field(400, ge=2, le=MOST_CELLS)
    """Records of each silo."""
    features: Count = Field(20, ge=1, le=MOST_WEIGHTS)
    """Features of a record, without the bias column."""
    heterogeneity: Factor = Field(1.0, ge=0)
    """Standard deviation of the silos' means and weights around the common ones; 0: all silos alike."""
    test_records: Count = Field(2000, ge=1, le=MOST_CELLS)
    classes: Count = Field(2, ge=2, le=1000)
    """Classes of the label; more than two need the softmax loss."""
    condition: Real = Field(1.0, ge=1, le=1e12)
    """Ratio of the largest to the smallest variance of a feature within a silo; the others lie between in equal
    ratios. A label depends equally on each feature, whatever its variance."""
    offset: Real = Field(0.0, ge=0, le=1e6)
    """Distance of the features' common centre from 0, in units of the largest deviation within a silo; equal in each
    feature. An offset adds one large eigenvalue."""
    informative: Count | None = Field(None, ge=1, le=MOST_WEIGHTS)
    """Number of features that affect a label: the first ones, which have the largest variances; null: all."""

    @model_validator(mode="after")
    def _no_more_than_features(self) -> Self:
        if self.informative is not None and self.informative > self.features:
            raise ValueError(f"informative is {self.informative}, of {self.features} features")
        return self

    @property
    def label_values(self) -> tuple[int, ...]:
        """The classes, in the order of their numbers."""
        return tuple(range(self.classes))


def synthetic(data: SyntheticData, seed: int) -> Generated:
    """Logistic data: silo l has z = m_l + N(0, I) in R^features and P(label 1) = sigmoid(<w_l, z>).

    A record is x_j = s_j z_j + offset / sqrt(features), with s_j^2 = condition^(-j / (features - 1)), j from 0. With
    more than two classes w_l is (classes, features) and P(label k) is the softmax of w_l z.

    m_l = heterogeneity N(0, I) / sqrt(features). w_l = w_0 + heterogeneity N(0, I), with w_0 ~ N(0, I) common to all
    silos; it is 0 beyond the `informative` features. Each silo `silo-000`, ... holds `records`. The test set has equal
    numbers of new draws, give or take one, from each silo's distribution.
    """
    d, heterogeneity = data.features, data.heterogeneity
    shape = (d,) if data.classes == 2 else (data.classes, d)
    common = stream(seed, _COMMON).standard_normal(shape)
    deviations = exp(log(np.array(data.condition)) * (-0.5 * np.arange(d) / max(d - 1, 1)))
    centre = data.offset / np.sqrt(d)
    uninformative = slice(d if data.informative is None else data.informative, d)
    tables: dict[str, Table] = {}
    tests: list[Table] = []
    for index, name in enumerate(silo_names(data.silos)):
        rng = stream(seed, _SILO, index)
        mean = heterogeneity * rng.standard_normal(d) / np.sqrt(d)
        weights = common + heterogeneity * rng.standard_normal(shape)
        weights[..., uninformative] = 0.0
        tables[name] = _draw(rng, data.records, mean, weights, deviations, centre)
        share = data.test_records // data.silos + (index < data.test_records % data.silos)
        tests.append(_draw(stream(seed, _SILO_TEST, index), share, mean, weights, deviations, centre))
    test = Table(np.concatenate([t.features for t in tests]), np.concatenate([t.labels for t in tests]))
    return Generated(tuple(f"x{j}" for j in range(d)), "label", tables, test)


def _draw(rng: Draws, n: int, mean: Vector, weights: NDArray[np.float64], deviations: Vector, centre: float) -> Table:
    Z = mean + rng.standard_normal((n, len(mean)))
    X = Z * deviations + centre
    if weights.ndim == 1:
        return Table(X, (product(Z, weights[:, None])[:, 0] + rng.logistic(n) > 0).astype(np.int64))
    # The largest of z_k + independent Gumbel variables is k with probability softmax(z)_k (Gumbel 1954).
    return Table(X, (product(Z, weights.T) + rng.gumbel((n, len(weights)))).argmax(axis=1).astype(np.int64))
