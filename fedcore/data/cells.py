"""Cells of a file's columns: which are numbers, which are missing, and why a file cannot be used.

CSV cells are text and are converted here: pyarrow guesses types from the first block only, and its own errors quote
the cell that does not fit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Value = str | int | float
"""Of a cell, as a configuration writes it."""

MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "-nan", "NULL", "null", "None")
"""Texts of a CSV cell that mean that its value is missing."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NAMED = 20  # columns that an error names


class Refusal(Exception):
    """Why a file cannot be used: a code of `silo_file.CODES`, a sentence without its subject, the file."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(code, sentence)
        self.code = code
        self.sentence = sentence


def decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column without dictionary encoding, text in pyarrow's plain string type."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        kind = pa.string()
    return column if kind == column.type else column.cast(kind)


def as_number(value: object) -> int | float | None:
    """The number that a cell or class is or spells, true as 1; None if there is none."""
    if isinstance(value, bool | int | float):
        return value
    if not isinstance(value, str):
        return None
    text = value.strip()
    if text.lower() in ("true", "false"):
        return int(text.lower() == "true")
    if not _NUMBER.fullmatch(text):
        return None
    return int(text) if text.lstrip("+-").isdigit() and len(text) < 1000 else float(text)


def is_missing(cell: object) -> bool:
    """Whether a cell is blank: nothing, not a number, or a text of `MISSING`."""
    return cell is None or cell != cell or (isinstance(cell, str) and cell.strip() in MISSING)


def is_same(cell: object, wanted: Value) -> bool:
    """Whether a cell is this value: the same text or the same number, as 1, 1.0, "1" and true are."""
    return same_text(cell, wanted) or same_number(cell, wanted)


def same_text(cell: object, wanted: Value) -> bool:
    return isinstance(cell, str) and cell.strip() == str(wanted).strip()


def same_number(cell: object, wanted: Value) -> bool:
    number = as_number(cell)
    return number is not None and number == as_number(wanted)


def identity(cell: object) -> object:
    """What all cells of one value have in common, as `is_same` tells: its number, or its text; hashable."""
    number = as_number(cell)
    if number is not None:
        return number
    return cell.strip() if isinstance(cell, str) else cell


def place_of(cell: object, values: Sequence[Value]) -> int | None:
    """Which of `values` a cell is, from 0: the same text before the same number; None if none, or several."""
    for same in (same_text, same_number):
        fits = [place for place, wanted in enumerate(values) if same(cell, wanted)]
        if fits:
            return fits[0] if len(fits) == 1 else None
    return None


def by_cell(column: pa.ChunkedArray, of: Callable[[object], float]) -> NDArray[np.float64]:
    """`of` each cell (n,), asked once for each value that there is; of an empty cell it is asked with None."""
    column = decoded(column)
    if pa.types.is_nested(column.type):
        return np.full(len(column), of(b""))  # no value that a configuration can write
    if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    values = column.combine_chunks().dictionary_encode(null_encoding="encode")
    found = np.array([of(cell) for cell in values.dictionary.to_pylist()], dtype=np.float64)
    return found[values.indices.to_numpy(zero_copy_only=False)]


def as_float(cell: object) -> float:
    """The finite number that a cell is or spells; NaN if there is none."""
    number = as_number(cell)
    try:
        value = np.nan if number is None else float(number)
    except OverflowError:
        return np.nan
    return value if np.isfinite(value) else np.nan


def numbers_or_nan(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """The column as float64 (n,); NaN where a cell is no finite number."""
    if pa.types.is_floating(column.type):
        values = column.cast(pa.float64()).to_numpy()
        return np.where(np.isfinite(values), values, np.nan)
    return by_cell(column, as_float)


def quoted(names: Iterable[object]) -> str:
    """The names in quotes, at most 20 of them."""
    names = list(names)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(repr(name) for name in names[:_NAMED]) + more
