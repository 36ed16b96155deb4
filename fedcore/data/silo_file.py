"""One silo's file: the facts needed to open it, its number of records, and its records.

Only code at the silo calls `open_records`. An error has a code of `CODES` and a sentence that names the file, the
column and a remedy. No sentence quotes a cell, a row number or pyarrow's message (which quotes cells). An error has no
cause, no context and no inner frame with variables that hold records. The refusal and its reason do reveal something
about records (docs/explanation/privacy-statement.md, "Not covered").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedcore.bounded_file import read_within
from fedcore.data import columns, schema
from fedcore.data.cells import Refusal, Value, numbers_or_nan, quoted
from fedcore.data.constants.pca import Origin, Projection
from fedcore.data.constants.scaling import Scales
from fedcore.data.constants.whitening import Whitening, longest_prepared, prepared
from fedcore.data.labels import class_ids, class_ids_or_nan, to_unit
from fedcore.data.persons import PLACES, count_persons, of_persons, persons_of
from fedcore.data.records import Records, prepare_records
from fedcore.data.schema import Schema
from fedcore.data.texts.column_types import misfit
from fedcore.errors import InputError, SiloError
from fedcore.limits import LARGEST_CONSTANTS
from fedcore.losses import REALS, LabelSet
from fedcore.models.model_config import Normalise

Format = Literal["parquet", "csv"]
T = TypeVar("T")

MIN_RECORDS = 2
_SHOWN = 3  # columns that one sentence is about

CODES: dict[str, str] = {
    "missing-file": "there is no file at the silo's path",
    "unreadable-file": "the file cannot be opened, or is damaged or of another format",
    "missing-column": "the file lacks a column that the configuration names",
    "repeated-column": "a column that the configuration names is in the file more than once",
    "not-numeric": "a feature column, or a real-valued label, is not numeric",
    "missing-value": "a feature column has missing or non-finite values",
    "missing-label": "the label column has missing or non-finite values",
    "unknown-label": "the label column has values outside its classes",
    "missing-person": "the column of persons has missing values, or values that name no person",
    "contents": "what the file holds does not fit the schema of its columns, or of its label",
    "constants": "the constants of the preparation are missing or are not those that were agreed",
    "too-few-records": f"the file has fewer than {MIN_RECORDS} records, or persons",
    "internal": "reading failed for a reason that is not foreseen",
}


@dataclass(frozen=True)
class Constants:
    """Record of a preparation's constants: file, digest and origin, as plain data."""

    path: str
    """Absolute path of the file at the silo."""
    digest: str
    """Expected `Projection.digest` or `Scales.digest` of its content."""
    origin: Origin
    dim: int
    """Features of a projected record, or columns of scales."""


Released = tuple[Constants, Projection | Scales]
"""Constants from released statistics, with their record."""


@dataclass(frozen=True)
class SiloSource:
    """All facts that a site needs to open a silo's records: plain, public, picklable data."""

    name: str
    path: str
    """Absolute path of the file at the silo."""
    format: Format
    features: tuple[str, ...]
    label: str
    classes: tuple[str | int, ...] | None
    """Values of the label; two become -1 and +1. None: the label is a real number."""
    bias: bool
    feature_bound: float
    divide_by: float
    version: str
    """Random id of the data set version, given at registration."""
    constants: Constants | None = None
    """Constants of the projection after the division; None: no projection."""
    class_ids: bool = False
    """Labels become the numbers 0, 1, ... of their classes, for the softmax loss."""
    labels: LabelSet = REALS
    """The numbers that a label without classes may take."""
    normalise: Normalise = "record"
    """The vector scaled to `feature_bound`: the record, or its features before the bias is appended."""
    unprotected: bool = False
    """The file's records were rescaled, or chosen, by their contents without noise."""
    schema: Schema | None = None
    """Map from columns to features; None: each column is a feature, unchanged."""
    whitening: Whitening | None = None
    """Whitening after the schema; None: none."""
    label_range: tuple[float, float] | None = None
    """Range of a real-valued label, mapped to -1 to 1; None: labels stay unchanged."""
    clip_label: bool = True
    """A label beyond its range is clipped to it; not so for public test data."""
    person: str | None = None
    """Name of the column of persons; None: each row is a record of its own."""
    person_rows: int = PLACES
    """Number of a person's first rows that count."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns that are read."""
        return (*self.features, self.label, *(() if self.person is None else (self.person,)))

    @property
    def dim(self) -> int:
        """Features of a prepared record, bias column included."""
        if self.constants is not None:
            return self.constants.dim + int(self.bias)
        return len(self.features if self.schema is None else schema.feature_names(self.schema)) + int(self.bias)


def format_of(path: str, key: str) -> Format:
    """Format by the suffix of the file's name. Raises InputError naming config key `key`."""
    suffix = Path(path).suffix.lower()
    if suffix == ".parquet":
        return "parquet"
    if suffix == ".csv":
        return "csv"
    raise InputError(f"{key}: file {path} must end in .parquet or .csv")


def open_records(source: SiloSource) -> Records:
    """Reads the silo's records, each by itself, in file order. Raises SiloError (CODES)."""
    return guarded(source, _read_records)


def count_records(source: SiloSource) -> int:
    """Counts records (public) by Parquet footer or CSV rows; checks columns' names and types.

    If the unit is a person, counts persons (public): the different values of that column, the only one it reads.
    Raises SiloError with a code of CODES.
    """
    return guarded(source, _count)


def guarded(source: SiloSource, read: Callable[[SiloSource], T]) -> T:
    """Calls `read`; its failure becomes a new SiloError without cause, context or inner frames."""
    try:
        return read(source)
    except Refusal as refusal:
        code, sentence = refusal.code, refusal.sentence
    except Exception as error:
        code, sentence = "internal", f"cannot be read ({type(error).__name__})"
    raise SiloError(source.name, code, f"file {source.path} {sentence}")


def _count(source: SiloSource) -> int:
    if source.person is None:
        found = columns.count_rows(source.path, source.format, source.columns)
        refuse_types(source)
        return _enough(found)
    table = columns.read_columns(source.path, source.format, source.columns, source.person)
    refuse_types(source)
    return unit_count(table.num_rows, read_persons(table, source))


def refuse_types(source: SiloSource) -> None:
    """Raises Refusal for columns of types in which no cell can fit; types are public."""
    expected: dict[str, tuple[Value, ...] | None] = {name: None for name in source.features}
    expected |= {column.name: column.categories for column in source.schema or ()}
    expected[source.label] = source.classes
    types = columns.types_of(source.path, source.format)
    judged = {name: misfit(types[name], values) for name, values in expected.items() if name in types}
    found = {name: reason for name, reason in judged.items() if reason is not None}
    if not found:
        return
    code = "contents"
    if source.schema is None:
        of_label = "not-numeric" if source.classes is None else "unknown-label"
        code = of_label if set(found) == {source.label} else "not-numeric"
    more = f", as {len(found) - _SHOWN} more columns do not" if len(found) > _SHOWN else ""
    reasons = [f"column {quoted([name])}: {reason}" for name, reason in list(found.items())[:_SHOWN]]
    raise Refusal(code, f"does not fit: {'; '.join(reasons)}{more}")


def unit_count(rows: int, owners: NDArray[np.intp] | None) -> int:
    """n: the number of rows, or of the persons who own them."""
    return rows if owners is None else count_persons(owners)


def read_persons(table: pa.Table, source: SiloSource) -> NDArray[np.intp] | None:
    """Number of each row's person; None if each row is a record of its own. Raises Refusal."""
    if source.person is None:
        return None
    owners = persons_of(table.column(source.person), source.person)
    _enough(count_persons(owners), "person(s)")
    return owners


def _read_records(source: SiloSource) -> Records:
    table = read_table(source)
    owners = read_persons(table, source)
    rows = _prepared(table, source)
    if source.person is None or owners is None:
        return rows
    return of_persons(rows, owners, source.person_rows, source.person)


def _prepared(table: pa.Table, source: SiloSource) -> Records:
    """One record of each row of the table."""
    projection = None if source.constants is None else read_projection(source.constants)
    if source.schema is not None:
        return _by_schema(table, source, source.schema)
    features = columns.feature_matrix(table, source.features)
    if source.classes is None:
        labels = columns.real_label(table, source.label, source.labels)
    else:
        labels = class_ids(table, source.label, source.classes)
    return prepare_records(
        features,
        _in_training(labels, source),
        source.bias,
        source.feature_bound,
        source.divide_by,
        projection,
        source.normalise,
    )


def read_table(source: SiloSource) -> pa.Table:
    """The source's columns, unchanged from the file. Raises Refusal."""
    table = columns.read_columns(source.path, source.format, source.columns)
    if source.person is None:
        _enough(table.num_rows)
    return table


def _by_schema(table: pa.Table, source: SiloSource, described: Schema) -> Records:
    """Records by their schema; a misfit label makes a record zeros, which moves no linear model."""
    labels = _in_training(labels_or_nan(table, source), source)
    return prepare_records(
        prepared(table, described, source.whitening),
        labels,
        source.bias,
        source.feature_bound,
        normalise=source.normalise,
        longest=longest_prepared(described, source.whitening),
    )


def labels_or_nan(table: pa.Table, source: SiloSource) -> NDArray[np.float64]:
    """Labels (n,): numbers of classes from 0, or real numbers; NaN for a cell that does not fit."""
    column = table.column(source.label)
    if source.classes is not None:
        return class_ids_or_nan(column, source.classes)
    numbers = numbers_or_nan(column)
    return np.where(source.labels.contains(numbers), numbers, np.nan)


def _in_training(labels: NDArray[np.float64], source: SiloSource) -> NDArray[np.float64]:
    """Labels in the loss's form: -1 and +1, numbers of classes, or real ones (scaled by range)."""
    if source.classes is not None:
        return labels if source.class_ids else 2.0 * labels - 1.0
    return labels if source.label_range is None else to_unit(labels, source.label_range, source.clip_label)


def read_projection(constants: Constants) -> Projection:
    """Reads the recorded projection. Raises Refusal (`constants`) for another digest."""
    try:
        projection = Projection.from_bytes(read_within(Path(constants.path), LARGEST_CONSTANTS))
    except (OSError, ValueError):
        projection = None
    if projection is None or projection.digest != constants.digest:
        raise Refusal("constants", f"has constants of its preparation in {constants.path} that are missing or damaged")
    return projection


def _enough(count: int, unit: str = "record(s)") -> int:
    if count < MIN_RECORDS:
        raise Refusal("too-few-records", f"has {count} {unit}; a silo needs at least {MIN_RECORDS}")
    return count
