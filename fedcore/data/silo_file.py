"""One silo's file: what its holder needs to open it, its number of records, and its records.

Only code at the silo calls `open_records`. What goes wrong is told by a code of `CODES` and a sentence that
names the file, the column and what would be right. No sentence quotes a cell, a row number or pyarrow's own
message (which quotes cells), and an error carries no cause, no context and no inner frame whose variables
hold records. That a file is refused, and why, does tell something about its records (docs/privacy.md, "Checks of
files" and "Policies").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import Field, model_validator

from fedcore.data import columns
from fedcore.data.columns import Refusal
from fedcore.data.labels import class_ids
from fedcore.data.pca import Origin, Projection
from fedcore.data.records import Records, prepare_records
from fedcore.errors import InputError, SiloError
from fedcore.hyperparameters import Real, Section
from fedcore.models.config import Normalise

Format = Literal["parquet", "csv"]
T = TypeVar("T")

MIN_RECORDS = 2

CODES: dict[str, str] = {
    "missing-file": "there is no file at the silo's path",
    "unreadable-file": "the file cannot be opened, or is damaged or of another format",
    "missing-column": "the file lacks a column that the configuration names",
    "repeated-column": "a column that the configuration names is in the file more than once",
    "not-numeric": "a feature column, or a real-valued label, is not numeric",
    "missing-value": "a feature column has missing or non-finite values",
    "missing-label": "the label column has missing or non-finite values",
    "unknown-label": "the label column has values outside its classes",
    "constants": "the constants of the preparation are missing or are not those that were agreed",
    "too-few-records": f"the file has fewer than {MIN_RECORDS} records",
    "internal": "reading failed for a reason that is not foreseen",
}


class SiloFile(Section):
    """One silo's own file, at its own place."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    path: str
    """CSV (.csv) or Parquet (.parquet) file; relative paths start at the working folder."""


class FilesData(Section):
    """A user's own silos: one CSV or Parquet file per silo, with the same columns."""

    source: Literal["files"] = "files"
    silos: tuple[SiloFile, ...] = Field(min_length=1)
    features: tuple[str, ...] = Field(min_length=1)
    """Names of the feature columns, in the order of the model's weights."""
    label: str
    """Name of the label column."""
    classes: tuple[str | int, ...] | None = Field((0, 1), min_length=2)
    """The values that the label may take: of two, the first as -1 and the second as +1, more for the softmax loss; null
    for a real-valued label."""
    test: str | None = None
    """A public file with the same columns that no silo holds; without it no test error is reported."""
    divide_by: Real = Field(1.0, gt=0)
    """Public constant that all features are divided by before the bias column is appended."""

    @model_validator(mode="after")
    def _names_are_distinct(self) -> FilesData:
        names = [silo.name for silo in self.silos]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"silo name {name!r} is used twice")
        if len(set(self.features)) < len(self.features):
            raise ValueError("a feature is named twice")
        if self.label in self.features:
            raise ValueError(f"label {self.label!r} is also a feature")
        for value in self.classes or ():
            if self.classes is not None and self.classes.count(value) > 1:
                raise ValueError(f"two classes are equal: {value!r}")
        return self

    @property
    def label_values(self) -> tuple[str | int, ...] | None:
        """The classes, in the order of their numbers; None for a real-valued label."""
        return self.classes


@dataclass(frozen=True)
class Constants:
    """Where a projection's constants are recorded, which they are, and where they come from: plain data."""

    path: str
    """Absolute path of the file at the silo."""
    digest: str
    """`Projection.digest` of what must be in it."""
    origin: Origin
    dim: int
    """Features of a projected record."""


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
    normalise: Normalise = "record"
    """What is scaled to `feature_bound`: the record, or its features before the bias is appended."""
    unprotected: bool = False
    """Whether the file's features were rescaled by statistics of silos' records without noise."""

    @property
    def dim(self) -> int:
        """Features of a prepared record, bias column included."""
        return (len(self.features) if self.constants is None else self.constants.dim) + int(self.bias)


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
    return _guarded(source, _read_records)


def count_records(source: SiloSource) -> int:
    """Number of records (public): the Parquet footer's, or the CSV file's rows; checks the columns' names.

    Raises SiloError with a code of CODES.
    """
    return _guarded(source, _count)


def _guarded(source: SiloSource, read: Callable[[SiloSource], T]) -> T:
    """What `read` returns; its failure as a new SiloError without cause, context or inner frames."""
    try:
        return read(source)
    except Refusal as refusal:
        code, sentence = refusal.code, refusal.sentence
    except Exception as error:
        code, sentence = "internal", f"cannot be read ({type(error).__name__})"
    raise SiloError(source.name, code, f"file {source.path} {sentence}")


def _count(source: SiloSource) -> int:
    return _enough(columns.count_rows(source.path, source.format, (*source.features, source.label)))


def _read_records(source: SiloSource) -> Records:
    projection = None if source.constants is None else read_projection(source.constants)
    table = columns.read_columns(source.path, source.format, (*source.features, source.label))
    _enough(table.num_rows)
    features = columns.feature_matrix(table, source.features)
    if source.classes is None:
        labels = columns.real_label(table, source.label)
    else:
        labels = class_ids(table, source.label, source.classes)
        if not source.class_ids:
            labels = 2.0 * labels - 1.0
    return prepare_records(
        features, labels, source.bias, source.feature_bound, source.divide_by, projection, source.normalise
    )


def read_projection(constants: Constants) -> Projection:
    """The recorded projection; raises Refusal with the code `constants` if it is not the one that was agreed."""
    try:
        projection = Projection.from_bytes(Path(constants.path).read_bytes())
    except (OSError, ValueError):
        projection = None
    if projection is None or projection.digest != constants.digest:
        raise Refusal("constants", f"has constants of its preparation in {constants.path} that are missing or damaged")
    return projection


def _enough(rows: int) -> int:
    if rows < MIN_RECORDS:
        raise Refusal("too-few-records", f"has {rows} record(s); a silo needs at least {MIN_RECORDS}")
    return rows
