"""Tables of texts, numbers and missing values for `predict` of models with such columns.

In a silo's file a misfit cell becomes the column's constant without an error, since no outcome may depend on it. Here
the caller owns the records, so an error or warning names the column; it shows no cell.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.data.cells import Places, Value, as_float, quoted
from fedcore.data.checks.judgement import SHOWN
from fedcore.data.schema import Column, Schema
from fedcore.data.texts.spellings import Alike
from fedcore.errors import InputError, ModelWarning
from fedcore.library.tables import KINDS, check_names, kind_of_objects, named_columns, no_numbers

if TYPE_CHECKING:
    from pandas import DataFrame

Cell = str | float | None
"""A cell; None for a missing value."""


def mixed_table(where: str, value: Any, schema: Schema, stacklevel: int) -> DataFrame:
    """The schema's columns of a table: categories unchanged, numbers as floats or NaN.

    The table has each column of the schema once, no other column, and at least one row. Raises InputError for another
    table; for a cell that is neither text nor number, or a text among numbers; for a missing value where the schema
    expects none; for a cell that is no category if the schema has no `other`, or if no cell of several is a category.
    Warns with ModelWarning, `stacklevel` frames above, if cells count as other.
    """
    from pandas import DataFrame

    if (named := named_columns(where, value)) is None:
        raise InputError(f"{where}: this model takes texts and missing values; give a DataFrame with its columns")
    check_names(where, named[0], [each.name for each in schema], "the model")
    found, others = dict(zip(*named, strict=True)), []
    cells: dict[str, Sequence[Cell]] = {}
    for column in schema:
        place = f"{where}: column {column.name!r}"
        cells[column.name] = _column(place, found[column.name], column)
        if column.categories is not None:
            others.append(_others(place, cells[column.name], column, column.categories))
    for message in filter(None, others):
        warnings.warn(message, ModelWarning, stacklevel=stacklevel + 1)
    return DataFrame(cells)


def _column(where: str, values: Any, column: Column) -> list[Cell]:
    wanted = "numbers" if column.categories is None else "texts or numbers"
    kind = getattr(getattr(values, "dtype", None), "kind", "O")
    if kind in KINDS and kind not in "UT":
        raise no_numbers(where, "values", KINDS[kind], wanted)
    listed = values.to_pylist() if hasattr(values, "to_pylist") else list(values)
    cells = [_plain(where, cell, wanted) for cell in listed]
    is_blank, may_be_blank = column.blanks(), column.missing is not None
    # As in training: blanks in a column without `missing` count as other, if the column has `other`.
    is_other = column.categories is not None and column.other
    if not (may_be_blank or is_other) and any(map(is_blank, set(cells))):
        raise InputError(f"{where}: values are missing, which the model's schema has no place for; fill them first")
    if column.categories is not None:
        return cells
    return [_number(where, cell, is_blank(cell), may_be_blank) for cell in cells]


def _others(where: str, cells: Sequence[Cell], column: Column, categories: Sequence[Value]) -> str | None:
    """A sentence about cells that are no category and count as other; None if there are none.

    Raises InputError if the column has no `other`, or if no cell of several is a category.
    """
    known, is_blank, counts = Places(categories), column.blanks(), Counter(cells)
    blanks = set(filter(is_blank, counts))
    strange = [cell for cell in counts if known.of(cell) is None and (cell not in blanks or column.missing is None)]
    if not strange:
        return None
    count, alike = sum(counts[cell] for cell in strange), Alike(categories)
    meant = sorted({near for cell in strange if cell not in blanks and (near := alike.nearly(cell)) is not None})
    near = f"; cells may be meant as {', '.join(meant[:SHOWN])}" if meant else ""
    if not any(known.of(cell) is not None for cell in counts) and len(cells) > 1:
        raise InputError(f"{where}: no cell is one of its categories {quoted(categories)}{near}")
    message = f"{where}: {count} of {len(cells)} cells are none of its categories {quoted(categories)}"
    if not column.other:
        raise InputError(f"{message}, and the model's schema has no `other`{near}")
    return f"{message} and count as other{near}"


def _plain(where: str, cell: Any, wanted: str) -> Cell:
    """A text or a number as a plain value for an Arrow column; whole numbers become texts."""
    import pandas as pd

    if isinstance(cell, np.generic) and cell.dtype.kind in "biufU":
        # NumPy's longdouble is longer than Python's float, and `item` would return it unchanged.
        cell = float(cell) if cell.dtype.kind == "f" else cell.item()
    if cell is None or cell is pd.NA or (isinstance(cell, float) and np.isnan(cell)):
        return None
    if isinstance(cell, str | float):
        return cell
    if isinstance(cell, bool | int):
        return str(cell)
    if isinstance(cell, Decimal):
        return format(cell, "f")
    held = np.empty(1, dtype=object)
    held[0] = cell
    other = "bytes" if isinstance(cell, bytes) else kind_of_objects(held) or f"of type {type(cell).__name__}"
    raise no_numbers(where, "values", other, wanted)


def _number(where: str, cell: Cell, blank: bool, may_be_blank: bool) -> float | None:
    if blank:
        return None
    if np.isnan(number := as_float(cell)):
        codes = ", nor codes for a missing value" if may_be_blank else ""
        raise InputError(f"{where}: some values are no finite numbers{codes}; make numbers of them first")
    return number
