"""Centres, scales and whitening from a public file, which no silo holds."""

from __future__ import annotations

import os
from typing import Literal

import numpy as np
from threadpoolctl import threadpool_limits

from fedcore.arrays import Matrix
from fedcore.data import columns
from fedcore.data.cells import Refusal
from fedcore.data.constants.scaling import PublicScaling, Scaled, centred, each_one_feature, with_range
from fedcore.data.constants.whitening import Whitening, decorrelation
from fedcore.data.schema import Column, Schema, features
from fedcore.errors import InputError

LEAST_RECORDS = 10
"""Least records of a public file, and least values of a column, for computing a scale."""


def scaled(schema: Schema, scaling: PublicScaling, format: Literal["csv", "parquet"]) -> Scaled:
    """The schema with centres and scales for ranges: mean and deviation of clipped values.

    With `log` they are those of logarithms. Other columns stay unchanged. A whitening follows from the public records'
    correlations, if the config requests one. Raises InputError for a file that cannot be read, and for a column with
    fewer than 10 values or without variance.
    """
    path = os.path.abspath(scaling.path)
    wanted = with_range(schema)
    if not wanted:
        return schema, None
    try:
        table = columns.read_columns(path, format, [column.name for column in wanted])
    except Refusal as refusal:
        sentence = f"data.scaling.path: file {path} {refusal.sentence}"
    else:
        found = {column.name: _centred(column, column.numbers(table.column(column.name)), scaling) for column in wanted}
        made = tuple(found.get(column.name, column) for column in schema)
        if not scaling.whiten:
            return made, None
        return made, whitening_of(tuple(found), scaling.limit, features(table, each_one_feature(found.values())))
    raise InputError(sentence)


def whitening_of(names: tuple[str, ...], limit: float, rows: Matrix) -> Whitening:
    """The whitening for public records with features (n, p) after centre and scale."""
    with threadpool_limits(limits=1, user_api="blas"):  # the number of threads changes the last bits
        correlations: Matrix = np.reshape(np.corrcoef(rows, rowvar=False), 2 * (len(names),))
    return Whitening.of(names, limit, decorrelation(correlations, np.full_like(correlations, len(rows) ** -0.5)))


def varies(centre: float, scale: float) -> bool:
    """Checks that a deviation is more than rounding, relative to its mean."""
    return scale > 1e-9 * max(1.0, abs(centre))


def _centred(column: Column, values: np.ndarray, scaling: PublicScaling) -> Column:
    known = values[~np.isnan(values)]
    if len(known) < LEAST_RECORDS:
        raise InputError(
            f"data.scaling.path: column {column.name!r} of {scaling.path} has {len(known)} values that fit; a scale "
            f"needs at least {LEAST_RECORDS}"
        )
    low, high = column.range or (-np.inf, np.inf)
    known = np.clip(known, low, high)
    known = np.log(known) if column.log else known
    centre, scale = float(known.mean()), float(known.std())
    if not varies(centre, scale):
        raise InputError(f"data.scaling.path: column {column.name!r} of {scaling.path} does not vary within its range")
    own = (float(np.exp(centre)), float(np.exp(scale))) if column.log else (centre, scale)
    return centred(column, *own, scaling.limit)
