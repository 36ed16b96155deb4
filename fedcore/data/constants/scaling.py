"""Centres and scales of a schema's numbers from data, so that nobody has to guess how columns spread.

A public file holds records that no silo holds, so its means and deviations are public constants, and the map stays one
of each record by itself. So are numbers that silos have released with noise and a charge.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Discriminator, Field, Tag

from fedcore.arrays import Matrix, Vector, digest, pack, unpack
from fedcore.data.constants.shrinkage import USUAL_SCALE
from fedcore.data.constants.whitening import Whitening
from fedcore.data.schema import LEAST_LIMIT, LIMIT, Column, Schema
from fedcore.hyperparameters import Real, Section
from fedcore.paths import LocalPath


class _Scaling(Section):
    """What both origins of centres and scales have."""

    limit: Real = Field(LIMIT, ge=LEAST_LIMIT, le=1000)
    """Scales from the centre at which values are clipped; of released ones another asks the silos for nothing new."""
    whiten: bool = False
    """Whether these numbers are decorrelated as well, by a matrix that comes from where centres and scales do."""


class PublicScaling(_Scaling):
    """Numbers with a range are centred and scaled by a public file instead of being mapped to -1 to 1."""

    constants: Literal["public"] = "public"
    path: LocalPath
    """A public file with the schema's columns, which no silo holds; it may be the test file."""


class ReleasedScaling(_Scaling):
    """Numbers with a range are centred and scaled by what silos release of them, with noise and a
    charge, beforehand."""

    key: ClassVar[str] = "data.scaling"

    constants: Literal["released"] = "released"
    epsilon: Real | None = Field(None, gt=0)
    """Required unless privacy.trust is none: target for the release, at the run's delta. It comes on top of
    privacy.epsilon, which is for training; results say what both compose to."""


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


Scaled = tuple[Schema, Whitening | None]
"""A schema with centres and scales, and what follows them."""


@dataclass(frozen=True, eq=False)
class Scales:
    """`centres` and `scales` (p,) of columns with a range, in their own units; with `log` as `Column` has them.

    `matrix` (p, p): by which the centred and scaled columns are whitened; None: they are not.
    """

    centres: Vector
    scales: Vector
    matrix: Matrix | None = None

    @classmethod
    def of_features(cls, ranged: Schema, centres: Vector, scales: Vector, matrix: Matrix | None = None) -> Scales:
        """Of columns with a range, from centres (p,) in -1 to 1 and scales (p,) in 0 to 1 of their features."""
        found = [_in_own_units(*each) for each in zip(ranged, centres, scales, strict=True)]
        own_centres, own_scales = (np.array(values) for values in zip(*found, strict=True))
        return cls(own_centres, own_scales, matrix)

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

    def whitening(self, schema: Schema, limit: float) -> Whitening | None:
        """What follows centres and scales, of a schema with its ranges; None where they are all there is."""
        if self.matrix is None:
            return None
        return Whitening.of(tuple(column.name for column in with_range(schema)), limit, self.matrix)

    def to_bytes(self) -> bytes:
        """Byte form, equal for equal constants only."""
        matrix = {} if self.matrix is None else {"matrix": self.matrix}
        return pack({"centres": self.centres, "scales": self.scales, **matrix})

    @classmethod
    def from_bytes(cls, data: bytes) -> Scales:
        """What `to_bytes` wrote; raises ValueError for anything else."""
        arrays = unpack(data)
        if arrays.keys() - {"matrix"} != {"centres", "scales"}:
            raise ValueError(f"arrays {sorted(arrays)}")
        centres, scales, matrix = arrays["centres"], arrays["scales"], arrays.get("matrix")
        if centres.ndim != 1 or centres.shape != scales.shape:
            raise ValueError(f"centres of shape {centres.shape} do not fit scales of shape {scales.shape}")
        if not (np.isfinite(centres).all() and np.isfinite(scales).all() and (scales > 0).all()):
            raise ValueError("constants that are not finite, or not positive")
        if matrix is not None and not (matrix.shape == 2 * centres.shape and np.isfinite(matrix).all()):
            raise ValueError(f"a matrix of shape {matrix.shape} for {len(centres)} columns, or not finite")
        return cls(centres, scales, matrix)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the constants."""
        return digest(self.to_bytes()).hex()


def with_range(schema: Schema) -> Schema:
    """The columns with a range: those that can be centred and scaled."""
    return tuple(column for column in schema if column.range is not None)


def measured(schema: Schema) -> Schema:
    """The columns with a range, each as one feature from -1 to 1: what is released of. A missing value is its fill."""
    return each_one_feature(with_range(schema))


def each_one_feature(numbers: Iterable[Column]) -> Schema:
    """The numbers without what says where values are missing."""
    return tuple(column.model_copy(update={"indicator": False}) if column.marked else column for column in numbers)


def expected(schema: Schema, scaling: ReleasedScaling) -> Scaled:
    """A stand-in for the schema with released constants, from public facts alone: the middles of ranges, and what
    deviations are expected to be. Its features have the names and the number that they will have."""
    ranged = with_range(schema)
    matrix = np.eye(len(ranged)) if scaling.whiten else None
    made = Scales.of_features(ranged, np.zeros(len(ranged)), np.full(len(ranged), USUAL_SCALE), matrix)
    return made(schema, scaling.limit), made.whitening(schema, scaling.limit)


def centred(column: Column, centre: float, scale: float, limit: float) -> Column:
    """The column with these in place of its range, in its own units."""
    return Column(
        name=column.name,
        centre=centre,
        scale=scale,
        limit=limit,
        log=column.log,
        missing=column.missing,
        indicator=column.indicator,
        fill=column.fill,
    )


def _in_own_units(column: Column, centre: float, scale: float) -> tuple[float, float]:
    """What a centre in -1 to 1 and a scale in 0 to 1 of the feature are in the column's units; with `log` a number and
    a factor above 1."""
    low, high = column.range or (-1.0, 1.0)
    if column.log:
        low, high = math.log(low), math.log(high)
    middle, half = low / 2 + high / 2, high / 2 - low / 2
    own, width = middle + half * float(centre), max(half * float(scale), np.finfo(np.float64).tiny)
    return (math.exp(own), max(math.exp(width), np.nextafter(1.0, 2.0))) if column.log else (own, width)
