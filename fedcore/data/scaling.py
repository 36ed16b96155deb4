"""Centres and scales of a schema's numbers from a public file, so that nobody has to guess how columns spread.

A public file holds records that no silo holds, so its means and deviations are public constants, and the map stays one
of each record by itself.
"""

from __future__ import annotations

import os
from typing import Literal

import numpy as np
from pydantic import Field

from fedcore.data import columns
from fedcore.data.cells import Refusal
from fedcore.data.schema import LIMIT, Column, Schema
from fedcore.errors import InputError
from fedcore.hyperparameters import Real, Section

LEAST_RECORDS = 10
"""Of a public file, and of its values in a column, that a scale is computed from."""


class PublicScaling(Section):
    """Numbers with a range are centred and scaled by a public file instead of being mapped to -1 to 1."""

    constants: Literal["public"] = "public"
    path: str
    """A public file with the schema's columns, which no silo holds; it may be the test file."""
    limit: Real = Field(LIMIT, gt=0, le=1000)
    """Scales from the centre at which values are clipped."""


def scaled(schema: Schema, scaling: PublicScaling, format: Literal["csv", "parquet"]) -> Schema:
    """The schema with centre and scale in place of ranges: mean and deviation of the public values, cut to the range.

    With `log` those of logarithms. Other columns stay as they are. Raises InputError naming file and column for a file
    that cannot be read, with fewer than 10 values in a column, or with a column that does not vary.
    """
    path = os.path.abspath(scaling.path)
    wanted = [column for column in schema if column.range is not None]
    if not wanted:
        return schema
    try:
        table = columns.read_columns(path, format, [column.name for column in wanted])
    except Refusal as refusal:
        sentence = f"data.scaling.path: file {path} {refusal.sentence}"
    else:
        found = {column.name: _centred(column, column.numbers(table.column(column.name)), scaling) for column in wanted}
        return tuple(found.get(column.name, column) for column in schema)
    raise InputError(sentence)


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
    if not scale > 1e-9 * max(1.0, abs(centre)):
        raise InputError(f"data.scaling.path: column {column.name!r} of {scaling.path} does not vary within its range")
    return Column(
        name=column.name,
        centre=float(np.exp(centre)) if column.log else centre,
        scale=float(np.exp(scale)) if column.log else scale,
        limit=scaling.limit,
        log=column.log,
        missing=column.missing,
        fill=column.fill,
    )
