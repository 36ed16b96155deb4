"""Medical insurance charges from a local CSV file: its columns, and its records as numbers.

Nothing is downloaded. Source: "Machine Learning with R" (Lantz), data set `insurance`: 1,338 persons.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from fedcore.data.cells import Places, Refusal, by_cell, is_missing, numbers_or_nan
from fedcore.data.columns import read_columns
from fedcore.data.table import Table
from fedcore.errors import InputError

FILE = "insurance.csv"
COLUMNS: dict[str, tuple[str, ...] | None] = {
    "age": None,
    "sex": ("female", "male"),
    "bmi": None,
    "children": None,
    "smoker": ("no", "yes"),
    "region": ("northeast", "northwest", "southeast", "southwest"),
}
"""Feature columns in order: None: a number; else its categories, numbered from 0 in alphabetical order."""
LABEL = "charges"


def load_insurance(folder: str) -> Table:
    """All records of `insurance.csv`, in file order: features (n, 6), charges (n,), float64.

    Raises InputError, naming file, column and record, for a missing or damaged file, a missing column, and a cell that
    does not fit its column.
    """
    path = Path(folder).absolute() / FILE
    if not path.is_file():
        raise InputError(
            f"data.folder = {folder}: there is no {FILE} in {path.parent}; nothing is downloaded: put the file there, "
            "or set data.folder to where it is"
        )
    stat = path.stat()
    return _read(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4)  # each cell of a sweep calls it
def _read(path: Path, size: int, modified: int) -> Table:
    try:
        table = read_columns(str(path), "csv", [*COLUMNS, LABEL])
    except Refusal as refusal:
        raise InputError(f"file {path} {refusal.sentence}") from None
    columns = [_column(path, name, table.column(name), categories) for name, categories in COLUMNS.items()]
    features, labels = np.stack(columns, axis=1), _column(path, LABEL, table.column(LABEL), None)
    features.setflags(write=False)
    labels.setflags(write=False)
    return Table(features, labels)


def _column(path: Path, name: str, column: pa.ChunkedArray, categories: tuple[str, ...] | None) -> np.ndarray:
    """The column as finite numbers (n,), or as the numbers of its categories."""

    places = Places(categories or ())

    def number(cell: object) -> float:
        place = places.of(cell)
        return np.nan if place is None else float(place)

    values = numbers_or_nan(column) if categories is None else by_cell(column, number)
    wrong = np.flatnonzero(np.isnan(values))
    if len(wrong):
        at = int(wrong[0])
        cell = column[at].as_py()
        fault = "is missing" if is_missing(cell) else f"is {str(cell)[:40]!r}"
        right = "a number" if categories is None else f"one of {', '.join(categories)}"
        raise InputError(f"file {path}: column {name!r} of record {at + 1} {fault}; it must be {right}")
    return values
