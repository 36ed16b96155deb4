"""Centres and scales of a schema's numbers from data, in place of guesses.

Means and deviations of a public file, whose records no silo holds, are public constants. So are numbers that silos
have released with noise and a charge. With public constants each record is mapped by itself.
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
    """The common keys of both origins of centres and scales."""

    limit: Real = Field(LIMIT, ge=LEAST_LIMIT, le=1000)
    """Scales from the centre at which values are clipped. Changing it needs no new release."""
    whiten: bool = False
    """Also decorrelates these numbers, by a matrix of the same origin as centres and scales."""


class PublicScaling(_Scaling):
    """Numbers with a range are centred and scaled by statistics of a public file."""

    constants: Literal["public"] = "public"
    path: LocalPath
    """A public file with the schema's columns, which no silo holds; it may be the test file."""


class ReleasedScaling(_Scaling):
    """Numbers with a range are centred and scaled by statistics that silos release before."""

    key: ClassVar[str] = "data.scaling"

    constants: Literal["released"] = "released"
    epsilon: Real | None = Field(None, gt=0)
    """Target for the release, at the run's delta; required unless privacy.trust is none. It comes on top of
    privacy.epsilon, which covers training; results show the composition."""


def _origin(value: Any) -> str:
    """Discriminator of a section: its `constants`, public by default."""
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
"""A schema with centres and scales, and the whitening after them."""


@dataclass(frozen=True, eq=False)
class Scales:
    """`centres` and `scales` (p,) of columns with a range, in own units; `log` as in `Column`.

    `matrix` (p, p): whitens the centred and scaled columns; None: no whitening.
    """

    centres: Vector
    scales: Vector
    matrix: Matrix | None = None

    @classmethod
    def of_features(cls, ranged: Schema, centres: Vector, scales: Vector, matrix: Matrix | None = None) -> Scales:
        """From centres (p,) in -1 to 1 and scales (p,) in 0 to 1 of ranged columns' features."""
        found = [_in_own_units(*each) for each in zip(ranged, centres, scales, strict=True)]
        own_centres, own_scales = (np.array(values) for values in zip(*found, strict=True))
        return cls(own_centres, own_scales, matrix)

    @property
    def dim(self) -> int:
        """Number of columns."""
        return len(self.centres)

    def __call__(self, schema: Schema, limit: float) -> Schema:
        """The schema with these constants in place of its ranges, in order. Raises ValueError."""
        found = {
            column.name: centred(column, float(centre), float(scale), limit)
            for column, centre, scale in zip(with_range(schema), self.centres, self.scales, strict=True)
        }
        return tuple(found.get(column.name, column) for column in schema)

    def whitening(self, schema: Schema, limit: float) -> Whitening | None:
        """The whitening after centres and scales, for a schema with its ranges; or None."""
        if self.matrix is None:
            return None
        return Whitening.of(tuple(column.name for column in with_range(schema)), limit, self.matrix)

    def to_bytes(self) -> bytes:
        """Byte form, equal for equal constants only."""
        matrix = {} if self.matrix is None else {"matrix": self.matrix}
        return pack({"centres": self.centres, "scales": self.scales, **matrix})

    @classmethod
    def from_bytes(cls, data: bytes) -> Scales:
        """The constants that `to_bytes` wrote. Raises ValueError for other bytes."""
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
    """The columns with a range, whose statistics are released, each as one feature from -1 to 1.

    A missing value counts as its fill.
    """
    return each_one_feature(with_range(schema))


def each_one_feature(numbers: Iterable[Column]) -> Schema:
    """The columns without features that mark missing values."""
    return tuple(column.model_copy(update={"indicator": False}) if column.marked else column for column in numbers)


def expected(schema: Schema, scaling: ReleasedScaling) -> Scaled:
    """A stand-in for the schema with released constants: middles of ranges, and usual deviations.

    It follows from public facts, and its features have the final names and number.
    """
    ranged = with_range(schema)
    matrix = np.eye(len(ranged)) if scaling.whiten else None
    made = Scales.of_features(ranged, np.zeros(len(ranged)), np.full(len(ranged), USUAL_SCALE), matrix)
    return made(schema, scaling.limit), made.whitening(schema, scaling.limit)


def centred(column: Column, centre: float, scale: float, limit: float) -> Column:
    """The column with centre and scale, in its own units, in place of its range."""
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
    """Converts a feature's centre in -1 to 1 and scale in 0 to 1 to the column's units.

    With `log` the scale is a factor above 1.
    """
    low, high = column.range or (-1.0, 1.0)
    if column.log:
        low, high = math.log(low), math.log(high)
    middle, half = low / 2 + high / 2, high / 2 - low / 2
    own, width = middle + half * float(centre), max(half * float(scale), np.finfo(np.float64).tiny)
    return (math.exp(own), max(math.exp(width), np.nextafter(1.0, 2.0))) if column.log else (own, width)
