"""Labels of classes: which cells of a label column are of which class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedcore.data.columns import MISSING, Refusal, as_number, decoded

Class = str | int

_NAMED = 20  # classes that an error names


def class_ids(table: pa.Table, name: str, classes: Sequence[Class]) -> NDArray[np.float64]:
    """Column `name` as numbers 0.0, 1.0, ... of its classes (n,).

    A class fits a cell that is the same text or the same number: 1, 1.0, "1" and true are one value.
    """
    column = decoded(table.column(name))
    outside = Refusal(
        "unknown-label",
        f"has a label column {name!r} that holds values other than its {_listed(classes)} in data.classes",
    )
    if pa.types.is_nested(column.type):
        raise outside
    if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    values = column.combine_chunks().dictionary_encode()
    cells = values.dictionary.to_pylist()
    ids = np.array([_class_id(cell, classes) for cell in cells], dtype=np.float64)
    blank = any(np.isnan(number) and _is_missing(cell) for number, cell in zip(ids, cells, strict=True))
    if column.null_count or blank:
        raise Refusal(
            "missing-label",
            f"has a label column {name!r} that holds missing values; every record needs a label",
        )
    if np.isnan(ids).any():
        raise outside
    return ids[values.indices.to_numpy(zero_copy_only=False)]


def _listed(classes: Sequence[Class]) -> str:
    """The classes as an error names them, at most 20 of more than two."""
    if len(classes) == 2:
        return f"two classes {classes[0]!r} and {classes[1]!r}; name both"
    more = f" and {len(classes) - _NAMED} more" if len(classes) > _NAMED else ""
    return f"{len(classes)} classes {', '.join(map(repr, classes[:_NAMED]))}{more}; name all"


def _class_id(cell: object, classes: Sequence[Class]) -> float:
    """The number of the class that a cell is; NaN if it is none, or could be several."""
    for same in (_same_text, _same_number):
        fits = [number for number, wanted in enumerate(classes) if same(cell, wanted)]
        if fits:
            return float(fits[0]) if len(fits) == 1 else float("nan")
    return float("nan")


def _same_text(cell: object, wanted: Class) -> bool:
    return isinstance(cell, str) and cell.strip() == str(wanted).strip()


def _same_number(cell: object, wanted: Class) -> bool:
    number = as_number(cell)
    return number is not None and number == as_number(wanted)


def _is_missing(cell: object) -> bool:
    return cell != cell or (isinstance(cell, str) and cell.strip() in MISSING)
