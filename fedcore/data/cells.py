"""Cells of a file's columns: numbers, missing values, comparison with configured values.

CSV cells are read as text and converted here, since pyarrow guesses types from the first block only. Its errors also
quote the cell that does not fit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from decimal import Decimal, InvalidOperation

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Value = str | int | float
"""Value of a cell as a configuration writes it."""

MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "-nan", "NULL", "null", "None")
"""Texts of a CSV cell that mean that its value is missing."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_CODE = re.compile(r"[+-]?(0\d.*|\d+[eE]\d+)", re.ASCII)
"""Texts that may be numbers or codes: 007, and 12e4, which may be hexadecimal digits."""
_NAMED = 20  # columns that an error names


class Refusal(Exception):
    """Reason to refuse a file: a code of `silo_file.CODES`, and a sentence about "the file"."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(code, sentence)
        self.code = code
        self.sentence = sentence


def value_type(kind: pa.DataType) -> pa.DataType:
    """The type of a column's cells, without their encoding as a dictionary or an extension."""
    if isinstance(kind, pa.BaseExtensionType):
        return value_type(kind.storage_type)
    return value_type(kind.value_type) if pa.types.is_dictionary(kind) else kind


def decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column decoded to a plain type: a UUID becomes bytes, a half float a double."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    kind = value_type(column.type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        kind = pa.string()
    elif pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        kind = pa.binary()
    elif pa.types.is_float16(kind):
        kind = pa.float64()
    elif pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind):
        kind = pa.decimal128(kind.precision, kind.scale)
    return column if kind == column.type else column.cast(kind)


def as_number(value: object) -> int | float | None:
    """The number that a cell of a numeric column is or spells, true as 1; None if there is none.

    Not for ids, since two ids may be one float: see `exact_number`.
    """
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, Decimal):
        return float(value)
    if not isinstance(value, str):
        return None
    text = value.strip()
    if text.lower() in ("true", "false"):
        return int(text.lower() == "true")
    if not _NUMBER.fullmatch(text):
        return None
    return int(text) if text.lstrip("+-").isdigit() and len(text) < 1000 else float(text)


def is_missing(cell: object) -> bool:
    """Checks for a blank cell: None, NaN, or a text of `MISSING`."""
    return cell is None or cell != cell or (isinstance(cell, str) and cell.strip() in MISSING)


def exact_number(value: object) -> Decimal | None:
    """The number that a cell or class is or spells, to its last digit, true as 1; else None.

    A float counts as the shortest decimal that reads back to it.
    """
    if isinstance(value, bool | int):
        return Decimal(int(value))
    if isinstance(value, float | Decimal):
        number = Decimal(repr(value)) if isinstance(value, float) else value
        return number if number.is_finite() else None
    if not isinstance(value, str):
        return None
    text = value.strip()
    if text.lower() in ("true", "false"):
        return Decimal(text.lower() == "true")
    try:
        return Decimal(text) if _NUMBER.fullmatch(text) else None
    except InvalidOperation:  # an exponent of more than 18 digits
        return None


def is_same(cell: object, wanted: Value) -> bool:
    """Checks that a cell is this value, as text or number (1, 1.0, "1" and true are one).

    A text that may be a code is a code: 007 is not 7, and 12e4 is not 120000.
    """
    return same_text(cell, wanted) or same_number(cell, wanted)


def same_text(cell: object, wanted: Value) -> bool:
    return isinstance(cell, str) and cell.strip() == str(wanted).strip()


def same_number(cell: object, wanted: Value) -> bool:
    number = _certain(cell)
    return number is not None and number == _certain(wanted)


def _certain(value: object) -> Decimal | None:
    """The number of a cell or value, unless it is a text that may be a code."""
    return None if isinstance(value, str) and _CODE.fullmatch(value.strip()) else exact_number(value)


class Places:
    """Index of values by text and number, which finds a cell's place (from 0)."""

    def __init__(self, values: Iterable[Value]) -> None:
        self._texts: dict[str, int | None] = {}
        self._numbers: dict[Decimal, int | None] = {}
        for place, value in enumerate(values):
            text, number = str(value).strip(), _certain(value)
            self._texts[text] = None if text in self._texts else place
            if number is not None:
                self._numbers[number] = None if number in self._numbers else place

    def of(self, cell: object) -> int | None:
        """Place of the value that a cell is, by text before number; None for none or several."""
        if isinstance(cell, str) and (text := cell.strip()) in self._texts:
            return self._texts[text]
        return None if (number := _certain(cell)) is None else self._numbers.get(number)


def repeated(values: Iterable[Value]) -> Value | None:
    """The first value that equals an earlier one (`is_same`); None if all differ."""
    seen: set[str | Decimal] = set()
    for value in values:
        number = _certain(value)
        forms = {str(value).strip(), *(() if number is None else (number,))}
        if not forms.isdisjoint(seen):
            return value
        seen |= forms
    return None


def by_cell(column: pa.ChunkedArray, of: Callable[[object], float]) -> NDArray[np.float64]:
    """`of` each cell (n,), computed once for each different value; an empty cell is None."""
    column = decoded(column)
    if pa.types.is_nested(column.type):
        return np.full(len(column), of(b""))  # no value that a configuration can write
    cells, places = values_of(column)
    return np.array([of(cell) for cell in cells], dtype=np.float64)[places]


def values_of(column: pa.ChunkedArray) -> tuple[list[object], NDArray[np.intp]]:
    """Distinct cells (None: empty) of a column that is not nested, and each row's index (n,)."""
    values = decoded(column).combine_chunks().dictionary_encode(null_encoding="encode")
    return values.dictionary.to_pylist(), values.indices.to_numpy(zero_copy_only=False).astype(np.intp)


def as_float(cell: object) -> float:
    """The finite number that a cell is or spells, as a float; NaN if there is none."""
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
