"""Two-class labels: which cells of a label column are the first class, which the second."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedcore.data.columns import MISSING, Refusal, as_number, decoded

Class = str | int


def class_label(table: pa.Table, name: str, classes: tuple[Class, Class]) -> NDArray[np.float64]:
    """Column `name` as -1.0 for the first of `classes` and +1.0 for the second (n,).

    A class fits a cell that is the same text or the same number: 1, 1.0, "1" and true are one value.
    """
    column = decoded(table.column(name))
    outside = Refusal(
        "unknown-label",
        f"has a label column {name!r} that holds values other than its two classes {classes[0]!r} and "
        f"{classes[1]!r}; name both in data.classes",
    )
    if pa.types.is_nested(column.type):
        raise outside
    if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    values = column.combine_chunks().dictionary_encode()
    cells = values.dictionary.to_pylist()
    signs = np.array([_sign(cell, classes) for cell in cells], dtype=np.float64)
    blank = any(np.isnan(sign) and _is_missing(cell) for sign, cell in zip(signs, cells, strict=True))
    if column.null_count or blank:
        raise Refusal(
            "missing-label",
            f"has a label column {name!r} that holds missing values; every record needs a label",
        )
    if np.isnan(signs).any():
        raise outside
    return signs[values.indices.to_numpy(zero_copy_only=False)]


def _sign(cell: object, classes: tuple[Class, Class]) -> float:
    """-1.0 or +1.0 for a cell that is the first or second class; NaN if it is neither, or could be both."""
    for same in (_same_text, _same_number):
        fits = [same(cell, wanted) for wanted in classes]
        if any(fits):
            return float("nan") if all(fits) else (-1.0 if fits[0] else 1.0)
    return float("nan")


def _same_text(cell: object, wanted: Class) -> bool:
    return isinstance(cell, str) and cell.strip() == str(wanted).strip()


def _same_number(cell: object, wanted: Class) -> bool:
    number = as_number(cell)
    return number is not None and number == as_number(wanted)


def _is_missing(cell: object) -> bool:
    return cell != cell or (isinstance(cell, str) and cell.strip() in MISSING)
