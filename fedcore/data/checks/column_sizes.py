"""Check for unscaled columns of the public test file that differ much in size.

Each record is shortened to a bounded norm, so the largest columns would dominate it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.arrays import Matrix
from fedcore.data import columns
from fedcore.data.cells import Refusal, numbers_or_nan
from fedcore.data.federations.federation_data import FederationData
from fedcore.data.silo_file import format_of
from fedcore.data.tabular import FilesData
from fedcore.errors import InputError

ALIKE = 10.0
"""Largest ratio of columns' sizes without a warning."""


def differing_sizes(data: Any) -> str | None:
    """A sentence about unscaled columns of the public test file that differ in size, or None.

    Raises InputError for a test file that cannot be read.
    """
    if (
        not isinstance(data, FilesData | FederationData)
        or data.test is None
        or data.described is not None
        or len(data.features) < 2
    ):
        return None
    sizes = [_size(column) for column in public_columns(data.test, data.column_names).T]
    known = [place for place, size in enumerate(sizes) if size > 0]
    if not known:
        return None
    least, most = min(known, key=sizes.__getitem__), max(known, key=sizes.__getitem__)
    if not sizes[most] > ALIKE * sizes[least]:
        return None
    few, many = data.column_names[least], data.column_names[most]
    return (
        f"columns of the test records differ in size: {many!r} is about {sizes[most]:.3g}, {few!r} about "
        f"{sizes[least]:.3g}. Each record is shortened to a bounded norm, so large columns drown the others"
    )


def public_columns(test: str, names: Sequence[str]) -> Matrix:
    """The public records' numbers (n, k), NaN for a cell that is no number. Raises InputError."""
    path = str(Path(test).absolute())
    try:
        table = columns.read_columns(path, format_of(path, "data.test"), list(names))
    except Refusal as refusal:
        sentence = f"data.test: file {path} {refusal.sentence}"
    else:
        return np.column_stack([numbers_or_nan(table.column(name)) for name in names])
    raise InputError(sentence)


def _size(column: Matrix) -> float:
    """Typical size of a column's values: median nonzero absolute value; 0 if all are zero."""
    known = np.abs(column[np.isfinite(column) & (column != 0)])
    return float(np.median(known)) if known.size else 0.0
