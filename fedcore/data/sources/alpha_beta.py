"""synthetic(alpha, beta): softmax data of heterogeneous users (Noble et al. 2022, App. D).

Source: spec dp-scaffold, section 7.1. `alpha` and `beta` are variances. User i has a law of its own:

- W_i ~ N(u_i, I) with u_i ~ N(0, alpha I), one mean for every entry, unlike the recipe of FedProx;
- b_i ~ N(u'_i, I) with u'_i ~ N(0, alpha I);
- v_i ~ N(B_i, I) with B_i ~ N(0, beta I).

Records are x ~ N(v_i, Sigma), Sigma_jj = j^-1.2, labelled argmax(x W_i + b_i). With probability `flip` a label is
replaced by one drawn uniformly from all classes, so it changes with probability flip (1 - 1 / classes).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field

from fedcore.arrays import Matrix, Vector
from fedcore.data.sources.streams import silo_names, stream
from fedcore.data.table import Generated, Table
from fedcore.draws.elementary import exp, log, product
from fedcore.draws.stream import Draws
from fedcore.errors import InputError
from fedcore.hyperparameters import Count, Factor, Real, Section
from fedcore.limits import MOST_CELLS, MOST_SILOS, MOST_WEIGHTS

Standardise = Literal["none", "global", "row-minmax"]

_LAW, _RECORDS = 105, 106  # purposes of random streams


class AlphaBetaData(Section):
    """synthetic(alpha, beta) of DP-SCAFFOLD: each silo has its own softmax-regression law."""

    source: Literal["synthetic-alpha-beta"] = "synthetic-alpha-beta"
    silos: Count = Field(100, ge=1, le=MOST_SILOS)
    records: Count = Field(5000, ge=3, le=MOST_CELLS)
    """Records of each silo before its own split: with the default test_fraction it trains on 4,000."""
    test_fraction: Real = Field(0.2, gt=0, lt=1)
    """Part of each silo's records set aside; the union over silos is the public test set."""
    features: Count = Field(40, ge=1, le=MOST_WEIGHTS)
    """Features of a record, without the bias column; the j-th has variance j^-1.2 within a silo."""
    classes: Count = Field(10, ge=2, le=1000)
    """Classes of the label; more than two need the softmax loss."""
    alpha: Factor = Field(0.0, ge=0)
    """Variance of the means around which a silo's weights are drawn, with variance 1: heterogeneity of models."""
    beta: Factor = Field(0.0, ge=0)
    """Variance of the means around which a silo's mean record is drawn, with variance 1: heterogeneity of features."""
    flip: Real = Field(0.05, ge=0, le=1)
    """Probability that a label is replaced by one drawn from all classes."""
    standardise: Standardise = "none"
    """none; global: z-scores by all silos' training records; row-minmax: by single records of each silo, a mistake in
    the paper's code, for comparison. Both are computed from records without noise: OUTSIDE OF THE GUARANTEE."""

    @property
    def label_values(self) -> tuple[int, ...]:
        """The classes, in the order of their numbers."""
        return tuple(range(self.classes))


class Law(NamedTuple):
    """Distribution of a user's records."""

    weights: Matrix
    """W (features, classes)."""
    bias: Vector
    """b (classes,)."""
    mean: Vector
    """v (features,)."""


def split_sizes(records: int, test_fraction: float) -> tuple[int, int]:
    """A user's training and public test records. Raises InputError naming the key."""
    test = round(test_fraction * records)
    if test < 1 or records - test < 2:
        raise InputError(
            f"data.test_fraction = {test_fraction} sets aside {test} of the data.records = {records} of a silo; it "
            "must set aside at least one and leave 2"
        )
    return records - test, test


def alpha_beta(
    silos: int,
    records: int,
    test_fraction: float,
    features: int,
    classes: int,
    alpha: float,
    beta: float,
    flip: float,
    standardise: Standardise,
    seed: int,
) -> Generated:
    """Silos `silo-000`, ..., and the union of their test parts, in order, as test set.

    With `standardise: none` a silo's records do not depend on the number of silos. Raises InputError as `split_sizes`
    and `standardised` do.
    """
    train, _ = split_sizes(records, test_fraction)
    held: dict[str, Table] = {}
    aside: list[Table] = []
    for index, name in enumerate(silo_names(silos)):
        law = draw_law(features, classes, alpha, beta, stream(seed, _LAW, index))
        made = draw_records(law, records, flip, stream(seed, _RECORDS, index))
        # Records are independent and identically distributed, so the last ones are a random part.
        held[name] = Table(made.features[:train], made.labels[:train])
        aside.append(Table(made.features[train:], made.labels[train:]))
    standardised(standardise, [table.features for table in held.values()], [table.features for table in aside])
    test = Table(np.concatenate([t.features for t in aside]), np.concatenate([t.labels for t in aside]))
    return Generated(tuple(f"x{j}" for j in range(features)), "label", held, test)


def draw_law(features: int, classes: int, alpha: float, beta: float, rng: Draws) -> Law:
    """A user's law, from the same normal draws for every alpha and beta."""
    mean = np.sqrt(beta) * rng.standard_normal(features) + rng.standard_normal(features)
    weights = np.sqrt(alpha) * rng.standard_normal((features, classes)) + rng.standard_normal((features, classes))
    bias = np.sqrt(alpha) * rng.standard_normal(classes) + rng.standard_normal(classes)
    return Law(weights, bias, mean)


def draw_records(law: Law, n: int, flip: float, rng: Draws) -> Table:
    """n records of a law: features (n, features) and labels (n,)."""
    features, classes = law.weights.shape
    deviations = exp(-0.6 * log(np.arange(1.0, features + 1)))  # roots of the variances j^-1.2
    X = law.mean + deviations * rng.standard_normal((n, features))
    labels = (product(X, law.weights) + law.bias).argmax(axis=1)
    replaced, others = rng.random(n) < flip, rng.integers(0, classes, n)
    return Table(X, np.where(replaced, others, labels).astype(np.int64))


def standardised(kind: Standardise, train: list[Matrix], test: list[Matrix]) -> None:
    """Rescales the users' features in place: training and test parts, lists of (n_i, features).

    global: z-scores with mean and standard deviation of all users' training records.

    row-minmax: a mistake in the paper's released code, user by user. Feature j becomes (x_j - lo) / (hi - lo). There lo
    and hi are the smallest and largest entry of the user's j-th training record, in place of the j-th column. Its
    entries before j are rescaled already.

    Both use silos' raw records without noise: OUTSIDE OF THE GUARANTEE. Raises InputError if row-minmax lacks a
    training record for each feature, or a second feature.
    """
    if kind == "global":
        count = sum(len(X) for X in train)
        mean = sum(X.sum(axis=0) for X in train) / count
        deviation = np.sqrt(sum(((X - mean) ** 2).sum(axis=0) for X in train) / count)
        deviation = np.where(deviation > 0, deviation, 1.0)
        for X in (*train, *test):
            X -= mean
            X /= deviation
    if kind == "row-minmax":
        features, fewest = train[0].shape[1], min(len(X) for X in train)
        if features < 2 or fewest < features:
            raise InputError(
                "data.standardise = row-minmax needs at least 2 features and a training record for each, but a silo "
                f"has {features} feature(s) and {fewest} training records: choose none or global"
            )
        for own, aside in zip(train, test, strict=True):
            for j in range(features):
                low, high = own[j].min(), own[j].max()
                for X in (own, aside):
                    X[:, j] = (X[:, j] - low) / (high - low)
