"""Class labels: the class number of each cell, and the scale of real-valued labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedcore.data.cells import Places, Refusal, by_cell, is_missing

Class = str | int

_NAMED = 20  # classes that an error names


def class_ids(table: pa.Table, name: str, classes: Sequence[Class]) -> NDArray[np.float64]:
    """Column `name` as numbers 0.0, 1.0, ... of its classes (n,).

    A class fits a cell that is the same text or the same number: 1, 1.0, "1" and true are one value. Raises Refusal:
    `missing-label` or `unknown-label`.
    """
    column = table.column(name)
    ids = class_ids_or_nan(column, classes)
    places = Places(classes)

    def is_blank(cell: object) -> bool:
        return is_missing(cell) and places.of(cell) is None

    if not np.isnan(ids).any():
        return ids
    if np.isnan(by_cell(column, lambda cell: np.nan if is_blank(cell) else 0.0)).any():
        raise Refusal(
            "missing-label", f"has a label column {name!r} that holds missing values; every record needs a label"
        )
    raise Refusal(
        "unknown-label",
        f"has a label column {name!r} that holds values other than its {_listed(classes)} in data.classes",
    )


def class_ids_or_nan(column: pa.ChunkedArray, classes: Sequence[Class]) -> NDArray[np.float64]:
    """A column as numbers of its classes (n,); NaN for a cell of no class, or of several."""
    places = Places(classes)

    def number(cell: object) -> float:
        place = places.of(cell)
        return np.nan if place is None else float(place)

    return by_cell(column, number)


def to_unit(labels: NDArray[np.float64], ends: tuple[float, float], clip: bool = True) -> NDArray[np.float64]:
    """Numbers mapped from their range to -1 to 1, and clipped to it if `clip`; NaN stays NaN."""
    low, high = ends
    unit = 2.0 * ((np.clip(labels, low, high) if clip else labels) - low) / (high - low) - 1.0
    return np.clip(unit, -1.0, 1.0) if clip else unit


def from_unit(labels: NDArray[np.float64], ends: tuple[float, float]) -> NDArray[np.float64]:
    """The inverse of `to_unit`, in the label's own units; predictions may lie beyond -1 to 1."""
    low, high = ends
    return low + (labels + 1.0) * ((high - low) / 2.0)


def _listed(classes: Sequence[Class]) -> str:
    """The classes for an error, at most 20 of more than two."""
    if len(classes) == 2:
        return f"two classes {classes[0]!r} and {classes[1]!r}; name both"
    more = f" and {len(classes) - _NAMED} more" if len(classes) > _NAMED else ""
    return f"{len(classes)} classes {', '.join(map(repr, classes[:_NAMED]))}{more}; name all"
