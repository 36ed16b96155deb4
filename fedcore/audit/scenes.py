"""Synthetic records for audits: silent ones, equal ones, and ones of every size and place."""

from __future__ import annotations

import numpy as np

from fedcore.arrays import Vector
from fedcore.audit.audited_silo import AuditedSilo
from fedcore.data.records import Records

SMALL, LARGE = 1e-3, 1e6
"""Norms of `mixed_records` in units that clipping allows: far inside of the bound to far beyond it."""
LOUD = 0.7
"""Share of mixed records beyond the bound."""
ON_AXIS = 0.5
"""Share of mixed records with one feature."""
EMPTY = 0.125
"""Share of mixed records without features."""
LARGER = 0.2
"""Share of mixed records forced into one class."""


def silent_records(audited: AuditedSilo) -> Records:
    """n records without features: every exact sum is zero, of samples too, unless a bias makes a gradient."""
    return Records(np.zeros((audited.n, audited.answer.features)), np.ones(audited.n))


def equal_records(audited: AuditedSilo, rng: np.random.Generator) -> Records:
    """n equal records with about half of the allowed gradient norm at w = 0."""
    x = unit(rng, audited.answer.features) * (0.5 * audited.answer.allowed)
    return Records(np.tile(x, (audited.n, 1)), np.full(audited.n, labels(audited, rng, 1)[0]))


def mixed_records(
    audited: AuditedSilo, rng: np.random.Generator, gentle: bool = False, on_axis: float = ON_AXIS
) -> Records:
    """n different records, with gradients far inside of the bound to far beyond it.

    They have all classes, one of them more often. A share `on_axis` has one feature, and some have none. The axes go
    round; the last one, which may be a bias column, is among them. Each run draws anew which record is the first or the
    last of a shard. `gentle`: all records are so small that no model of the domain is confident about one, so no sum of
    some of them is zero.
    """
    n, features = audited.n, audited.answer.features
    loud = rng.random(n) < LOUD
    sizes = np.where(loud, LARGE ** rng.random(n) * 2.0, SMALL ** rng.random(n) * 0.9) * audited.answer.allowed
    if gentle:
        sizes = SMALL * 10.0 ** rng.random(n) * audited.answer.allowed
    X = rng.standard_normal((n, features))
    there = np.flatnonzero(rng.random(n) < on_axis)
    X[there] = 0.0
    X[there, (rng.integers(features) + np.arange(len(there))) % features] = rng.choice([-1.0, 1.0], len(there))
    X *= (sizes / np.linalg.norm(X, axis=1))[:, None]
    if not gentle:
        X[rng.random(n) < EMPTY] = 0.0
    y = labels(audited, rng, n)
    y[rng.random(n) < LARGER] = y[0]
    return Records(X, y)


def labels(audited: AuditedSilo, rng: np.random.Generator, many: int) -> Vector:
    """Labels of all classes in turn, from a random one on; the loss's pair where it has one predictor."""
    first = int(rng.integers(1000))
    if audited.answer.classes is not None:
        return np.array((first + np.arange(many)) % audited.answer.classes, dtype=np.float64)
    low, high = (-1.0, 1.0) if audited.loss is None else audited.loss.labels.pair
    return np.where((first + np.arange(many)) % 2, high, low)


def unit(rng: np.random.Generator, dim: int) -> Vector:
    """A direction drawn uniformly."""
    direction = rng.standard_normal(dim)
    return np.asarray(direction / np.linalg.norm(direction))
