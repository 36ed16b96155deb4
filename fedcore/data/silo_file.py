"""One silo's file: what its holder needs to open it, its number of records, and its records.

Only code at the silo calls `open_records`. What goes wrong is told by a code of `CODES` and a sentence that
names the file, the column and what would be right. No sentence quotes a cell, a row number or pyarrow's own
message (which quotes cells), and an error carries no cause, no context and no inner frame whose variables
hold records. That a file is refused, and why, does tell something about its records
(docs/explanation/privacy-statement.md, "Not covered").
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
    "missing-person": "the column of persons has missing values, or values that name nobody",
    "contents": "what the file holds does not fit the schema of its columns, or of its label",
    "constants": "the constants of the preparation are missing or are not those that were agreed",
    "too-few-records": f"the file has fewer than {MIN_RECORDS} records, or persons",
    "internal": "reading failed for a reason that is not foreseen",
}


@dataclass(frozen=True)
class Constants:
    """Where constants are recorded, which they are, and where they come from: plain data."""

    path: str
    """Absolute path of the file at the silo."""
    digest: str
    """`Projection.digest`, or `Scales.digest`, of what must be in it."""
    origin: Origin
    dim: int
    """Features of a projected record; of scales the columns."""


Released = tuple[Constants, Projection | Scales]
"""Constants that follow from released statistics, and where they are recorded."""


@dataclass(frozen=True)
class SiloSource:
    """All that a silo's holder needs to open its records: plain, public, picklable data."""

    name: str
    path: str
    """Absolute path of the file at the silo."""
    format: Format
    features: tuple[str, ...]
    label: str
    classes: tuple[str | int, ...] | None
    """Values of the label, two of which become -1 and +1; None: the label is a real number."""
    bias: bool
    feature_bound: float
    divide_by: float
    version: str
    """Random id of the data set version, given at registration."""
    constants: Constants | None = None
    """Of the projection that follows the division; None: there is none."""
    class_ids: bool = False
    """Whether labels become the numbers 0, 1, ... of their classes instead: what the softmax loss takes."""
    labels: LabelSet = REALS
    """Numbers that fit, of a label without classes."""
    normalise: Normalise = "record"
    """What is scaled to `feature_bound`: the record, or its features before the bias is appended."""
    unprotected: bool = False
    """Whether the file's features were rescaled by statistics of silos' records without noise."""
    schema: Schema | None = None
    """How the columns become features; None: each is one, as it is."""
    whitening: Whitening | None = None
    """What follows the schema; None: nothing."""
    label_range: tuple[float, float] | None = None
    """Of a real-valued label, mapped to -1 to 1; None: as it is."""
    clip_label: bool = True
    """Whether a label beyond its range becomes the end that is next to it; of public test data it stays what it is."""
    person: str | None = None
    """The column that says whose a row is; None: each row is a record of its own."""
    person_rows: int = PLACES
    """Of each person, its first rows that count."""

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
    """The format that the file's name says; InputError, naming config key `key`, if it says neither."""
    suffix = Path(path).suffix.lower()
    if suffix == ".parquet":
        return "parquet"
    if suffix == ".csv":
        return "csv"
    raise InputError(f"{key}: file {path} must end in .parquet or .csv")


def open_records(source: SiloSource) -> Records:
    """The silo's records, mapped one by one, in file order; raises SiloError with a code of CODES."""
    return guarded(source, _read_records)


def count_records(source: SiloSource) -> int:
    """Number of records (public): the Parquet footer's, or the CSV file's rows; checks the columns' names and types.

    Where the unit is a person, the number of persons (public): the different values in that column, and no other is
    read. Raises SiloError with a code of CODES.
    """
    return guarded(source, _count)


def guarded(source: SiloSource, read: Callable[[SiloSource], T]) -> T:
    """What `read` returns; its failure as a new SiloError without cause, context or inner frames."""
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
    """Raises Refusal for columns of types in which no cell can fit: public, as they are in the file's footer."""
    asked: dict[str, tuple[Value, ...] | None] = {name: None for name in source.features}
    asked |= {column.name: column.categories for column in source.schema or ()}
    asked[source.label] = source.classes
    types = columns.types_of(source.path, source.format)
    judged = {name: misfit(types[name], values) for name, values in asked.items() if name in types}
    found = {name: said for name, said in judged.items() if said is not None}
    if not found:
        return
    code = "contents"
    if source.schema is None:
        of_label = "not-numeric" if source.classes is None else "unknown-label"
        code = of_label if set(found) == {source.label} else "not-numeric"
    more = f", as {len(found) - _SHOWN} more columns do not" if len(found) > _SHOWN else ""
    said = [f"column {quoted([name])}: {why}" for name, why in list(found.items())[:_SHOWN]]
    raise Refusal(code, f"does not fit: {'; '.join(said)}{more}")


def unit_count(rows: int, whose: NDArray[np.intp] | None) -> int:
    """What n is of so many rows: their number, or that of the persons whose they are."""
    return rows if whose is None else count_persons(whose)


def read_persons(table: pa.Table, source: SiloSource) -> NDArray[np.intp] | None:
    """Whose each row is, as `persons_of` says; None where each is a record of its own. Raises Refusal."""
    if source.person is None:
        return None
    whose = persons_of(table.column(source.person), source.person)
    _enough(count_persons(whose), "person(s)")
    return whose


def _read_records(source: SiloSource) -> Records:
    table = read_table(source)
    whose = read_persons(table, source)
    rows = _prepared(table, source)
    if source.person is None or whose is None:
        return rows
    return of_persons(rows, whose, source.person_rows, source.person)


def _prepared(table: pa.Table, source: SiloSource) -> Records:
    """A record of each row."""
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
    """The columns that are named, as they are in the file; raises Refusal."""
    table = columns.read_columns(source.path, source.format, source.columns)
    if source.person is None:
        _enough(table.num_rows)
    return table


def _by_schema(table: pa.Table, source: SiloSource, described: Schema) -> Records:
    """The records as their schema says: a record whose label does not fit is all zeros, which moves no linear model."""
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
    """Labels (n,) as numbers of classes from 0, or as they are; NaN where a cell is none that fits."""
    column = table.column(source.label)
    if source.classes is not None:
        return class_ids_or_nan(column, source.classes)
    numbers = numbers_or_nan(column)
    return np.where(source.labels.contains(numbers), numbers, np.nan)


def _in_training(labels: NDArray[np.float64], source: SiloSource) -> NDArray[np.float64]:
    """Labels as the loss takes them: -1 and +1, numbers of classes, or real ones, from -1 to 1 if there is a range."""
    if source.classes is not None:
        return labels if source.class_ids else 2.0 * labels - 1.0
    return labels if source.label_range is None else to_unit(labels, source.label_range, source.clip_label)


def read_projection(constants: Constants) -> Projection:
    """The recorded projection; raises Refusal with the code `constants` if it is not the one that was agreed."""
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
