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
    name, first = next(iter(silos.items()))
    columns = _columns("silo", name, first)
    width = _records("silo", name, first, columns)[0].shape[1]
    written = [
        {"name": name, "path": _written(folder, "silo", name, of, width, columns)} for name, of in silos.items()
    ]
    held_out = None if test is None else _written(folder, "test", "test", test, width, columns)
    return section | {
        "silos": written, "label": LABEL, "features": [f"x{index}" for index in range(width)], "test": held_out
    }  # fmt: skip


def _written(folder: Path, kind: str, name: str, records: Any, width: int, names: list[Any] | None) -> str:
    X, y = _records(kind, name, records, names)
    if X.shape[1] != width:
        raise InputError(f"{kind} {name}: {X.shape[1]} features where the first silo has {width}")
    columns = {f"x{index}": X[:, index] for index in range(width)}
    path = folder / f"{kind}-{len(list(folder.iterdir()))}.parquet"
    pq.write_table(pa.table(columns | {LABEL: y}), path)
    return str(path)


def _pair(kind: str, name: str, records: Any) -> tuple[Any, Any]:
    if not (isinstance(records, tuple | list) and len(records) == 2):
        raise InputError(f"{kind} {name}: records are a pair, features (n, k) and labels (n,)")
    return records[0], records[1]


def _columns(kind: str, name: str, records: Any) -> list[Any] | None:
    """Names of a DataFrame's columns, in its order; None where features are an array. Raises InputError."""
    features, _ = _pair(kind, name, records)
    columns = getattr(features, "columns", None)
    if columns is None:
        return None
    found = list(columns)
    if twice := sorted({str(each) for each in found if found.count(each) > 1}):
        raise InputError(f"{kind} {name}: column {twice[0]!r} is there twice")
    return found


def _aligned(kind: str, name: str, records: Any, names: list[Any] | None) -> tuple[Any, Any]:
    """Features with their columns in the order of the first silo's, and labels. Raises InputError."""
    features, labels = _pair(kind, name, records)
    columns = _columns(kind, name, records)
    if (columns is None) != (names is None):
        raise InputError(f"{kind} {name}: columns have names at some silos and not at others; give all as DataFrames")
    if columns is not None and names is not None and columns != names:
        if missing := [each for each in names if each not in columns]:
            raise InputError(f"{kind} {name}: column {str(missing[0])!r} of the first silo is not there")
        if more := [each for each in columns if each not in names]:
            raise InputError(f"{kind} {name}: column {str(more[0])!r} is not at the first silo")
        features = features[names]
    ours, theirs = (getattr(each, "index", None) for each in (features, labels))
    if columns is not None and hasattr(theirs, "equals") and not theirs.equals(ours):
        raise InputError(f"{kind} {name}: features and labels have other indexes; rows would be paired by position")
    return features, labels


_KINDS = {"c": "complex numbers", "M": "dates", "m": "durations"}
_TEXTS = {"U": "texts", "S": "texts", "T": "texts"}


def _refuse_other_numbers(kind: str, name: str, what: str, values: Any) -> None:
    """Raises InputError for what NumPy would cast to numbers in silence, and for what is masked."""
    if np.ma.is_masked(values):
        raise InputError(f"{kind} {name}: {what} are masked; fill what is missing, or leave these records out")
    types = [values.dtype] if hasattr(values, "dtype") else list(getattr(values, "dtypes", ()))
    for each in types:
        known = _KINDS if what == "labels" else _KINDS | _TEXTS
        if (cast := known.get(getattr(each, "kind", ""))) is not None:
            raise InputError(f"{kind} {name}: {what} are {cast}; make them numbers first")


def _records(
    kind: str, name: str, records: Any, names: list[Any] | None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[Any]]:
    """Features as float64 (n, k) and labels (n,). Raises InputError, which says nothing of their values."""
    features, labels = _aligned(kind, name, records, names)
    _refuse_other_numbers(kind, name, "features", features)
    _refuse_other_numbers(kind, name, "labels", labels)
    try:
        X, y = np.asarray(features), np.asarray(labels)
        _refuse_other_numbers(kind, name, "features", X)
        X = X.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{kind} {name}: features are not an array of numbers") from None
    _refuse_other_numbers(kind, name, "labels", y)
    if X.ndim != 2 or y.ndim != 1 or len(X) != len(y) or not len(X):
        shapes = f"features of shape {X.shape} and labels of shape {y.shape}"
        raise InputError(f"{kind} {name}: {shapes}; wanted (n, k) and (n,)")
    if y.dtype == np.bool_ or (y.dtype.kind == "f" and np.all(y == np.round(y))):
        y = y.astype(np.int64)
    return X, y
