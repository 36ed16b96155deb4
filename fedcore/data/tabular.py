"""Config sections of tables: their feature columns, and a user's own silos, one file each."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from fedcore.data.cells import is_same, quoted
from fedcore.data.constants.scaling import ReleasedScaling, Scaling, with_range
from fedcore.data.constants.whitening import MOST_COLUMNS
from fedcore.data.persons import MOST_PLACES, PLACES
from fedcore.data.schema import Column, Schema, feature_names
from fedcore.hyperparameters import Count, Factor, Real, Section
from fedcore.paths import LocalPath
from fedcore.planning.problem import LONGEST_NAME


def _as_list(value: Any) -> Any:
    """Turns a mapping of names to columns into the list of these columns."""
    if isinstance(value, Mapping):
        return [{"name": name, **(of if isinstance(of, Mapping) else {})} for name, of in value.items()]
    return value


def _kind(value: Any) -> str:
    items = list(value) if isinstance(value, list | tuple) else []
    return "schema" if items and not any(isinstance(item, str) for item in items) else "names"


def _distinct(columns: tuple[Any, ...]) -> Any:
    names = [column.name if isinstance(column, Column) else column for column in columns]
    repeated = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if repeated:
        raise ValueError(f"names {quoted(repeated)} twice")
    return columns


Features = Annotated[
    Annotated[tuple[str, ...], Tag("names")] | Annotated[Schema, Tag("schema")],
    Field(discriminator=Discriminator(_kind)),
    BeforeValidator(_as_list),
    AfterValidator(_distinct),
]
"""Feature columns: names of numeric columns, or a schema; written as a list, or as a mapping by name."""


class Tabular(Section):
    """A data section with feature columns that are only named, or described by a schema."""

    features: Features = Field(min_length=1)
    """The feature columns, in the order of the model's weights. A schema gives each name its public facts: range, or
    centre and scale, or categories; codes for missing. A list of names suffices for columns of numbers."""

    @property
    def described(self) -> Schema | None:
        """The schema of the feature columns; None if they are only named."""
        first = self.features[0]
        return self.features if isinstance(first, Column) else None  # type: ignore[return-value]

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the feature columns in the files."""
        return tuple(column.name if isinstance(column, Column) else column for column in self.features)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features of these columns, without the bias."""
        return self.column_names if self.described is None else feature_names(self.described)


SILO_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
"""Pattern of a silo's name, which becomes a part of files' names."""


class SiloFile(Section):
    """One silo's own file."""

    name: str = Field(pattern=SILO_NAME.pattern)
    path: LocalPath
    """CSV (.csv) or Parquet (.parquet) file; relative paths start at the working folder."""


class OwnTable(Tabular):
    """A user's own table, at each of several silos: the columns, and the map from a row's cells to a record."""

    label: str
    """Name of the label column."""
    classes: tuple[str | int, ...] | None = Field((0, 1), min_length=2)
    """The values of the label. The first of two becomes -1, the second +1; more than two need the softmax loss. Null
    for a real-valued label."""
    person: str | None = Field(None, min_length=1, max_length=LONGEST_NAME)
    """Name of the column with each row's person. The guarantee then covers each person with all of its rows, and counts
    of records are counts of persons. Null: the guarantee covers each row."""
    person_rows: Count = Field(PLACES, ge=1, le=MOST_PLACES)
    """With `person`: number of a person's first rows that count; m such rows weigh 1/m each."""
    divide_by: Factor = Field(1.0, gt=0)
    """With features that are only named: public constant that divides all of them."""
    label_range: tuple[Real, Real] | None = None
    """Public range of a real-valued label, which is clipped to it and mapped to -1 to 1 for training; errors are in the
    label's own units. Null: labels stay unchanged."""

    @model_validator(mode="after")
    def _columns_are_distinct(self) -> OwnTable:
        if self.label in self.column_names:
            raise ValueError(f"data.label {self.label!r} is also one of data.features; a column has one role")
        if self.person is not None and self.person in (self.label, *self.column_names):
            other = "data.label" if self.person == self.label else "one of data.features"
            raise ValueError(f"data.person {self.person!r} is also {other}; a column has one role")
        if self.person is not None and not self.person.isprintable():
            raise ValueError("data.person must be printable: it is part of what silos agree to, and of their accounts")
        if self.person is None and self.person_rows != PLACES:
            raise ValueError("data.person_rows has no meaning without data.person: leave it out")
        for place, value in enumerate(classes := self.classes or ()):
            if any(is_same(value, other) for other in classes[:place]):
                raise ValueError(f"data.classes: two classes are equal: {value!r} (1 and '1' are one value)")
        return self

    @model_validator(mode="after")
    def _constants_fit_the_columns(self) -> OwnTable:
        if self.described is not None and self.divide_by != 1.0:
            raise ValueError("data.divide_by has no meaning with a schema of data.features, which scales: leave it out")
        if self.label_range is not None:
            low, high = self.label_range
            if self.classes is not None:
                raise ValueError("data.label_range is for a real-valued label (data.classes: null): leave it out")
            if not (low < high and math.isfinite(high - low)):
                raise ValueError(f"data.label_range [{low:g}, {high:g}] must be [smallest, largest]")
        return self

    @property
    def label_values(self) -> tuple[str | int, ...] | None:
        """The classes, in the order of their numbers; None for a real-valued label."""
        return self.classes


class FilesData(OwnTable):
    """A user's own silos: one CSV or Parquet file per silo, with the same columns."""

    source: Literal["files"] = "files"
    silos: tuple[SiloFile, ...] = Field(min_length=1)
    test: LocalPath | None = None
    """A public file with the same columns that no silo holds; without it no test error is reported."""
    scaling: Scaling | None = None
    """Source of centres and scales of numbers. Null: the schema gives ranges. Public: a public file. Released: means
    and squares (with `whiten` second moments), which silos release with noise and a charge before training."""

    @model_validator(mode="after")
    def _names_are_distinct(self) -> FilesData:
        names = [silo.name for silo in self.silos]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"silo name {name!r} is used twice")
        return self

    @model_validator(mode="after")
    def _scaling_has_a_meaning(self) -> FilesData:
        if self.described is None and self.scaling is not None:
            raise ValueError("data.scaling needs a schema of data.features, with the ranges to scale within")
        ranged = len(with_range(self.described or ()))
        if isinstance(self.scaling, ReleasedScaling) and not ranged:
            raise ValueError(
                "data.scaling.constants = released needs a column of data.features with a range; none has one"
            )
        if self.scaling is not None and self.scaling.whiten and not 2 <= ranged <= MOST_COLUMNS:
            raise ValueError(
                f"data.scaling.whiten is for 2 to {MOST_COLUMNS} columns of data.features with a range; it has {ranged}"
            )
        return self
