"""The step that prepares raw records as training does, before a model that is in use.

Saved models refer to `scaled_records`: its name, module and argument names must not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from fedcore.data.constants.pca import Projection
from fedcore.data.constants.whitening import Whitening, longest_prepared, prepared
from fedcore.data.records import prepare_records
from fedcore.data.schema import Column, Schema
from fedcore.models.model_config import Normalise


def scaled_records(
    records: ArrayLike,
    divide_by: float,
    bias: bool,
    feature_bound: float,
    normalise: Normalise = "record",
    projection: tuple[NDArray[np.float64], NDArray[np.float64], float] | None = None,
    columns: Sequence[Mapping[str, Any]] | None = None,
    whitening: Mapping[str, Any] | None = None,
) -> NDArray[np.float64]:
    """The prepared records (n, d): divided, projected, a one appended for the bias, each scaled to a bounded norm.

    `projection`: the fields of a `Projection`. `columns`: the schema as plain values; `records` are then a table of
    numbers and texts with columns of these names. `whitening`, as plain values, follows the schema.
    """
    if columns is not None:
        schema = tuple(Column.model_validate(column) for column in columns)
        follows = None if whitening is None else Whitening.model_validate(whitening)
        made, bound = prepared(_as_table(records, schema), schema, follows), longest_prepared(schema, follows)
        return prepare_records(made, np.zeros(len(made)), bias, feature_bound, normalise=normalise, longest=bound).X
    rows = np.asarray(records, dtype=np.float64)
    known = None if projection is None else Projection(*projection)
    return prepare_records(rows, np.zeros(len(rows)), bias, feature_bound, divide_by, known, normalise).X


def _as_table(records: Any, schema: Schema) -> pa.Table:
    """The schema's columns of a DataFrame, or of rows in the schema's order."""
    from pandas import DataFrame

    names = [column.name for column in schema]
    frame = records if isinstance(records, DataFrame) else DataFrame(np.asarray(records, dtype=object), columns=names)
    return pa.table({name: _as_column(frame[name].tolist()) for name in names})


def _as_column(cells: list[Any]) -> pa.ChunkedArray:
    try:
        return pa.chunked_array([pa.array(cells, from_pandas=True)])
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # texts among numbers
        return pa.chunked_array([[None if cell is None else str(cell) for cell in cells]])
