"""Tables of texts, numbers and missing values, as a model with such columns takes them.

In files of silos what does not fit a column becomes its constant in silence, since no outcome may depend on it. Here
the caller has the records, and is told.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.data.cells import as_float
from fedcore.data.schema import Column, Schema
from fedcore.errors import InputError
from fedcore.library.tables import KINDS, kind_of_objects, named_columns, no_numbers

if TYPE_CHECKING:
    from pandas import DataFrame

Cell = str | float | None
"""None where a value is missing."""


def mixed_table(where: str, value: Any, schema: Schema) -> DataFrame:
    """The schema's columns of a table: of categories as they are, of numbers as floats, NaN where one is missing.

    Raises InputError for anything but a table with each column once and a row at least, cells that are neither texts
    nor numbers, texts among numbers, and values that are missing where the schema expects none.
    """
    from pandas import DataFrame

    if (named := named_columns(where, value)) is None:
        raise InputError(f"{where}: this model takes texts and missing values; give a DataFrame with its columns")
    found = dict(zip(*named, strict=True))
    if missing := [each.name for each in schema if each.name not in found]:
        raise InputError(f"{where}: column {missing[0]!r} of the model is not there")
    return DataFrame({each.name: _column(f"{where}: column {each.name!r}", found[each.name], each) for each in schema})


def _column(where: str, values: Any, column: Column) -> list[Cell]:
    wanted = "numbers" if column.categories is None else "texts or numbers"
    kind = getattr(getattr(values, "dtype", None), "kind", "O")
    if kind in KINDS and kind not in "UT":
        raise no_numbers(where, "values", KINDS[kind], wanted)
    listed = values.to_pylist() if hasattr(values, "to_pylist") else list(values)
    cells = [_plain(where, cell, wanted) for cell in listed]
    if column.categories is not None:
        return cells
    is_blank = column.blanks()
    return [_number(where, cell, is_blank(cell), column.missing is not None) for cell in cells]


def _plain(where: str, cell: Any, wanted: str) -> Cell:
    """A text or a number as a plain value, of which Arrow makes columns; whole numbers as the texts that spell them."""
    import pandas as pd

    if isinstance(cell, np.generic) and cell.dtype.kind in "biufU":
        cell = cell.item()
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
        if not may_be_blank:
            raise InputError(f"{where}: values are missing, which this model was not trained for; fill them first")
        return None
    if np.isnan(number := as_float(cell)):
        codes = ", nor codes for a missing value" if may_be_blank else ""
        raise InputError(f"{where}: some values are no finite numbers{codes}; make numbers of them first")
    return number
