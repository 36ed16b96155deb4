"""Silos as a script has them, arrays by name or files by name, as the data section of a config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from fedcore.errors import InputError

Records = tuple[npt.ArrayLike, npt.ArrayLike]
"""Features (n, k) and labels (n,)."""
Silos = Mapping[str, Records] | Mapping[str, str | Path]

LABEL = "label"


def data_section(
    silos: Silos, test: Records | str | Path | None, folder: Path, label: str | None, features: Any,
    classes: Sequence[str | int] | None,
) -> dict[str, Any]:  # fmt: skip
    """`data` of a config; arrays are written below `folder`, one Parquet file each. Raises InputError."""
    if not isinstance(silos, Mapping) or not silos:
        raise InputError("silos must be a mapping of names to (features, labels), or to files")
    section: dict[str, Any] = {"source": "files", "classes": None if classes is None else list(classes)}
    if all(isinstance(of, str | Path) for of in silos.values()):
        if label is None or features is None:
            raise InputError("silos in files need label=, the label's column, and features=, the columns of features")
        if test is not None and not isinstance(test, str | Path):
            raise InputError("silos in files need test= as a file, too")
        paths = [{"name": name, "path": str(path)} for name, path in silos.items()]
        return section | {
            "silos": paths, "label": label, "features": features, "test": None if test is None else str(test)
        }  # fmt: skip
    if label is not None or features is not None:
        raise InputError("label= and features= name columns of files; arrays have none")
    width = _records("silo", *next(iter(silos.items())))[0].shape[1]
    written = [
        {"name": name, "path": _written(folder, "silo", name, of, width)} for name, of in silos.items()
    ]
    held_out = None if test is None else _written(folder, "test", "test", test, width)
    return section | {
        "silos": written, "label": LABEL, "features": [f"x{index}" for index in range(width)], "test": held_out
    }  # fmt: skip


def _written(folder: Path, kind: str, name: str, records: Any, width: int) -> str:
    X, y = _records(kind, name, records)
    if X.shape[1] != width:
        raise InputError(f"{kind} {name}: {X.shape[1]} features where the first silo has {width}")
    columns = {f"x{index}": X[:, index] for index in range(width)}
    path = folder / f"{kind}-{len(list(folder.iterdir()))}.parquet"
    pq.write_table(pa.table(columns | {LABEL: y}), path)
    return str(path)


def _records(kind: str, name: str, records: Any) -> tuple[npt.NDArray[np.float64], npt.NDArray[Any]]:
    """Features as float64 (n, k) and labels (n,). Raises InputError, which says nothing of their values."""
    if not (isinstance(records, tuple | list) and len(records) == 2):
        raise InputError(f"{kind} {name}: records are a pair, features (n, k) and labels (n,)")
    try:
        X, y = np.asarray(records[0], dtype=np.float64), np.asarray(records[1])
    except (TypeError, ValueError):
        raise InputError(f"{kind} {name}: features are not an array of numbers") from None
    if X.ndim != 2 or y.ndim != 1 or len(X) != len(y) or not len(X):
        shapes = f"features of shape {X.shape} and labels of shape {y.shape}"
        raise InputError(f"{kind} {name}: {shapes}; wanted (n, k) and (n,)")
    if y.dtype == np.bool_ or (y.dtype.kind == "f" and np.all(y == np.round(y))):
        y = y.astype(np.int64)
    return X, y
