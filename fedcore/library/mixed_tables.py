"""Tables of texts, numbers and missing values, as a model with such columns takes them.

In files of silos what does not fit a column becomes its constant in silence, since no outcome may depend on it. Here
the caller has the records, and is told: of cells, a sentence shows none.
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
"""None where a value is missing."""


def mixed_table(where: str, value: Any, schema: Schema, stacklevel: int) -> DataFrame:
    """The schema's columns of a table: of categories as they are, of numbers as floats, NaN where one is missing.

    Raises InputError for anything but a table with each column once and no other, and a row at least; cells that are
    neither texts nor numbers, texts among numbers, and values that are missing where the schema expects none; cells
    that are no category where the schema has no `other`, or of several records none is one. Warns with ModelWarning
    where cells count as other, at `stacklevel` above.
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
    for said in filter(None, others):
        warnings.warn(said, ModelWarning, stacklevel=stacklevel + 1)
    return DataFrame(cells)


def _column(where: str, values: Any, column: Column) -> list[Cell]:
    wanted = "numbers" if column.categories is None else "texts or numbers"
    kind = getattr(getattr(values, "dtype", None), "kind", "O")
    if kind in KINDS and kind not in "UT":
        raise no_numbers(where, "values", KINDS[kind], wanted)
    listed = values.to_pylist() if hasattr(values, "to_pylist") else list(values)
    cells = [_plain(where, cell, wanted) for cell in listed]
    is_blank, may_be_blank = column.blanks(), column.missing is not None
    # As in training: blanks that are expected nowhere count as other where there is such a place.
    is_other = column.categories is not None and column.other
    if not (may_be_blank or is_other) and any(map(is_blank, set(cells))):
        raise InputError(f"{where}: values are missing, which the model's schema has no place for; fill them first")
    if column.categories is not None:
        return cells
    return [_number(where, cell, is_blank(cell), may_be_blank) for cell in cells]


def _others(where: str, cells: Sequence[Cell], column: Column, categories: Sequence[Value]) -> str | None:
    """A sentence where cells are no category and count as other; None where each is one, or missing.

    Raises InputError where they count as nothing, or where none of several records' is a category.
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
    said = f"{where}: {count} of {len(cells)} cells are none of its categories {quoted(categories)}"
    if not column.other:
        raise InputError(f"{said}, and the model's schema has no `other`{near}")
    return f"{said} and count as other{near}"


def _plain(where: str, cell: Any, wanted: str) -> Cell:
    """A text or a number as a plain value, of which Arrow makes columns; whole numbers as the texts that spell them."""
    import pandas as pd

    if isinstance(cell, np.generic) and cell.dtype.kind in "biufU":
        # NumPy has its own object for a float that is longer than Python's.
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
