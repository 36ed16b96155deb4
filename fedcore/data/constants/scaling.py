"""Centres and scales of a schema's numbers from data, so that nobody has to guess how columns spread.

A public file holds records that no silo holds, so its means and deviations are public constants, and the map stays one
of each record by itself. So are numbers that silos have released with noise and a charge.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Discriminator, Field, Tag

from fedcore.arrays import Vector, digest, pack, unpack
from fedcore.data import columns
from fedcore.data.cells import Refusal
from fedcore.data.constants.shrinkage import USUAL_SCALE, centres_and_scales
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


class ReleasedScaling(Section):
    """Numbers with a range are centred and scaled by what silos release of them, with noise and a charge, beforehand.
    """

    key: ClassVar[str] = "data.scaling"

    constants: Literal["released"] = "released"
    epsilon: Real | None = Field(None, gt=0)
    """Required unless privacy.trust is none: target for the release, at the run's delta. It comes on top of
    privacy.epsilon, which is for training; results say what both compose to."""
    limit: Real = Field(LIMIT, gt=0, le=1000)
    """Scales from the centre at which values are clipped; another one asks the silos for nothing new."""


def _origin(value: Any) -> str:
    """Which of the two a section is: public, unless it says otherwise."""
    return str(value.get("constants", "public") if isinstance(value, Mapping) else getattr(value, "constants", ""))


Scaling = Annotated[
    Annotated[PublicScaling, Tag("public")] | Annotated[ReleasedScaling, Tag("released")],
    Field(
        discriminator=Discriminator(
            _origin, custom_error_type="origin", custom_error_message="constants must be public or released"
        )
    ),
]


@dataclass(frozen=True, eq=False)
class Scales:
    """`centres` and `scales` (p,) of columns with a range, in their own units; with `log` as `Column` has them."""

    centres: Vector
    scales: Vector

    @classmethod
    def of_moments(cls, ranged: Schema, means: Vector, squares: Vector, noise: float) -> Scales:
        """Of columns with a range, from means and mean squares (p,) of their features, all with this deviation of
        noise (`shrinkage`)."""
        return cls.of_features(ranged, *centres_and_scales(means, squares, noise))

    @classmethod
    def of_features(cls, ranged: Schema, centres: Vector, scales: Vector) -> Scales:
        """Of columns with a range, from centres (p,) in -1 to 1 and scales (p,) in 0 to 1 of their features."""
        found = [_in_own_units(*each) for each in zip(ranged, centres, scales, strict=True)]
        return cls(*(np.array(values) for values in zip(*found, strict=True)))

    @property
    def dim(self) -> int:
        """Columns."""
        return len(self.centres)

    def __call__(self, schema: Schema, limit: float) -> Schema:
        """The schema with these in place of its ranges, in order. Raises ValueError for another number of ranges."""
        found = {
            column.name: centred(column, float(centre), float(scale), limit)
            for column, centre, scale in zip(with_range(schema), self.centres, self.scales, strict=True)
        }
        return tuple(found.get(column.name, column) for column in schema)

    def to_bytes(self) -> bytes:
        """Byte form, equal for equal constants only."""
        return pack({"centres": self.centres, "scales": self.scales})

    @classmethod
    def from_bytes(cls, data: bytes) -> Scales:
        """What `to_bytes` wrote; raises ValueError for anything else."""
        arrays = unpack(data)
        if arrays.keys() != {"centres", "scales"}:
            raise ValueError(f"arrays {sorted(arrays)}")
        centres, scales = arrays["centres"], arrays["scales"]
        if centres.ndim != 1 or centres.shape != scales.shape:
            raise ValueError(f"centres of shape {centres.shape} do not fit scales of shape {scales.shape}")
        if not (np.isfinite(centres).all() and np.isfinite(scales).all() and (scales > 0).all()):
            raise ValueError("constants that are not finite, or not positive")
        return cls(centres, scales)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the constants."""
        return digest(self.to_bytes()).hex()


def with_range(schema: Schema) -> Schema:
    """The columns with a range: those that can be centred and scaled."""
    return tuple(column for column in schema if column.range is not None)


def measured(schema: Schema) -> Schema:
    """The columns with a range, each as one feature from -1 to 1: what is released of. A missing value is its fill."""
    return tuple(
        column.model_copy(update={"indicator": False}) if column.marked else column for column in with_range(schema)
    )


def expected(schema: Schema, limit: float) -> Schema:
    """A stand-in for the schema with released constants, from public facts alone: the middles of ranges, and what
    deviations are expected to be. Its features have the names and the number that they will have."""
    ranged = with_range(schema)
    return Scales.of_features(ranged, np.zeros(len(ranged)), np.full(len(ranged), USUAL_SCALE))(schema, limit)


def scaled(schema: Schema, scaling: PublicScaling, format: Literal["csv", "parquet"]) -> Schema:
    """The schema with centre and scale in place of ranges: mean and deviation of the public values, cut to the range.

    With `log` those of logarithms. Other columns stay as they are. Raises InputError naming file and column for a file
    that cannot be read, with fewer than 10 values in a column, or with a column that does not vary.
    """
    path = os.path.abspath(scaling.path)
    wanted = with_range(schema)
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
    own = (float(np.exp(centre)), float(np.exp(scale))) if column.log else (centre, scale)
    return centred(column, *own, scaling.limit)


def centred(column: Column, centre: float, scale: float, limit: float) -> Column:
    """The column with these in place of its range, in its own units."""
    return Column(
        name=column.name, centre=centre, scale=scale, limit=limit, log=column.log, missing=column.missing,
        indicator=column.indicator, fill=column.fill,
    )  # fmt: skip


def _in_own_units(column: Column, centre: float, scale: float) -> tuple[float, float]:
    """What a centre in -1 to 1 and a scale in 0 to 1 of the feature are in the column's units; with `log` a number and
    a factor above 1."""
    low, high = column.range or (-1.0, 1.0)
    if column.log:
        low, high = math.log(low), math.log(high)
    middle, half = low / 2 + high / 2, high / 2 - low / 2
    own, width = middle + half * float(centre), max(half * float(scale), np.finfo(np.float64).tiny)
    return (math.exp(own), max(math.exp(width), np.nextafter(1.0, 2.0))) if column.log else (own, width)
