"""The data section of a config for a script's silos: arrays by name, or files by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from fedcore.data.cells import as_number, is_missing, repeated
from fedcore.data.labels import class_ids_or_nan
from fedcore.errors import InputError
from fedcore.library.tables import NUMBERED, Features, features_of, labels_of

Records = tuple[Any, Any]
"""Features (n, k) and labels (n,)."""
Silos = Mapping[str, Records] | Mapping[str, str | Path]

LABEL = "label"
REAL_LOSS = "model={'loss': {'name': 'squared'}, 'clip': 1.0}"
CLASSES_LOSS = "model={'loss': {'name': 'softmax'}}"

_WANTED = "write {'north': (X, y), 'south': (X, y), ..}, a pair of features (n, k) and labels (n,) for each silo"


def data_section(
    silos: Any, test: Any, folder: Path, label: Any, features: Any, classes: Any, check_values: bool
) -> dict[str, Any]:
    """`data` of a config for these silos and test records; writes arrays to Parquet files.

    Each silo's arrays, and those of the test, get one file below `folder`; equal arrays give equal bytes.
    `check_values`: also checks labels and missing values, which a plan does not need. Raises InputError, which shows no
    cell of the data.
    """
    if not isinstance(silos, Mapping) or not silos:
        raise InputError(f"silos must be a mapping of names to records; {_WANTED}")
    for name in silos:
        if not isinstance(name, str):
            raise InputError(f"silos: the name {name!r} is no text; write {str(name)!r}")
    section: dict[str, Any] = {"source": "files", "classes": _classes(classes)}
    in_files = [isinstance(records, str | Path) for records in silos.values()]
    if all(in_files):
        return section | _of_files(silos, test, label, features)
    if any(in_files):
        name = next(name for name, is_file in zip(silos, in_files, strict=True) if is_file)
        raise InputError(f"silo {name} is a file and others are arrays; give all as files, or all as arrays")
    if label is not None:
        raise InputError(
            "label= names a column of files; of arrays labels are the second of each pair, of a DataFrame for instance "
            "(table.drop(columns='outcome'), table['outcome'])"
        )
    if features is not None:
        raise InputError("features= describes columns of files; of arrays leave it out, and see scale= for ranges")
    return section | _of_arrays(silos, test, folder, section["classes"], check_values)


def _of_files(silos: Mapping[str, Any], test: Any, label: Any, features: Any) -> dict[str, Any]:
    if label is None or features is None:
        raise InputError("silos in files need label=, the label's column, and features=, the columns of features")
    if test is not None and not isinstance(test, str | Path):
        raise InputError("silos in files need test= as a file, too")
    paths = [{"name": name, "path": str(path)} for name, path in silos.items()]
    return {"silos": paths, "label": label, "features": features, "test": None if test is None else str(test)}


def _of_arrays(
    silos: Mapping[str, Any], test: Any, folder: Path, classes: list[Any] | None, check_values: bool
) -> dict[str, Any]:
    found = _read(silos, test, classes, check_values)
    first = next(iter(found.values()))[0]
    names = first.names or tuple(f"{NUMBERED}{place}" for place in range(first.X.shape[1]))
    label = LABEL
    while label in names:
        label += "_"
    paths = {}
    for place, (where, (features, labels)) in enumerate(found.items()):
        paths[where] = str(folder / f"{place}.parquet")
        columns = {name: features.X[:, column] for column, name in enumerate(names)}
        pq.write_table(pa.table(columns | {label: labels}), paths[where])
    return {
        "silos": [{"name": name, "path": paths[f"silo {name}"]} for name in silos],
        "label": label,
        "features": list(names),
        "test": paths.get("test"),
    }


def _read(
    silos: Mapping[str, Any], test: Any, classes: list[Any] | None, check_values: bool
) -> dict[str, tuple[Features, npt.NDArray[Any]]]:
    """Features and labels by `silo NAME` and `test`, with the first silo's columns in order."""
    owners: dict[int, str] = {}
    found: dict[str, tuple[Features, npt.NDArray[Any]]] = {}
    first: Features | None = None
    for where, records in _places(silos, test):
        X, y = _pair(where, records)
        if (owner := owners.setdefault(id(X), where)) != where:
            right = "test records are public, and no silo holds them" if where == "test" else "a record is of one silo"
            raise InputError(f"{where}: features are the very object of {owner}; {right}")
        features, labels = _records(where, X, y, first)
        first = first or features
        if check_values:
            features.check_finite(where)
            _check_labels(where, labels, classes)
        found[where] = features, labels
    return found


def _places(silos: Mapping[str, Any], test: Any) -> list[tuple[str, Any]]:
    found = [(f"silo {name}", records) for name, records in silos.items()]
    return found if test is None else [*found, ("test", test)]


def _pair(where: str, records: Any) -> tuple[Any, Any]:
    if not (isinstance(records, tuple | list) and len(records) == 2):
        raise InputError(f"{where}: records are a pair, features (n, k) and labels (n,): (X, y)")
    return records[0], records[1]


def _records(where: str, X: Any, y: Any, first: Features | None) -> tuple[Features, npt.NDArray[Any]]:
    """Features in the first silo's order of columns, and labels. Raises InputError."""
    features = features_of(where, X, None if first is None else first.names, "the first silo")
    labels, index = labels_of(where, y)
    if len(features.X) != len(labels):
        raise InputError(f"{where}: features have {len(features.X)} records and labels {len(labels)}")
    if features.index is not None and hasattr(index, "equals") and not index.equals(features.index):
        raise InputError(f"{where}: features and labels have other indexes; rows would be paired by position")
    if first is not None:
        _check_alike(where, features, first)
    return features, labels


def _check_alike(where: str, features: Features, first: Features) -> None:
    if (features.names is None) != (first.names is None):
        raise InputError(f"{where}: columns have names at some silos and not at others; give all as DataFrames")
    if features.X.shape[1] != first.X.shape[1]:
        raise InputError(f"{where}: {features.X.shape[1]} features where the first silo has {first.X.shape[1]}")


def _classes(classes: Any) -> list[Any] | None:
    """The label's values as a list, None for real labels. Raises InputError if unordered."""
    if classes is None:
        return None
    if isinstance(classes, str | bytes | Mapping | set | frozenset) or not hasattr(classes, "__len__"):
        raise InputError("classes= lists the label's values in order, for instance (0, 1) or ('no', 'yes')")
    found = classes.tolist() if isinstance(classes, np.ndarray) else list(classes)
    twice = repeated(found) is not None
    if len(found) < 2 or twice:
        raise InputError("classes= lists two different values at least, for instance (0, 1) or ('no', 'yes')")
    return found


def _check_labels(where: str, labels: npt.NDArray[Any], classes: Sequence[Any] | None) -> None:
    """Raises InputError, with a remedy, if a label is missing or of no class."""
    cells = labels.tolist()
    missing = InputError(f"{where}: labels are missing at some records; every record needs one")
    if classes is None:
        if any(map(is_missing, cells)):
            raise missing
        if labels.dtype.kind not in "biuf" or not np.isfinite(labels).all():
            raise InputError(f"{where}: labels are no finite numbers; name their values as classes=(.., ..)")
        return
    odd = np.isnan(class_ids_or_nan(pa.chunked_array([pa.array(labels)]), classes))
    if not odd.any():
        return
    if any(is_missing(cells[place]) for place in np.flatnonzero(odd)):
        raise missing
    named = " and ".join(map(repr, classes)) if len(classes) == 2 else f"{len(classes)} values"
    if labels.dtype.kind not in "biuf" and all(as_number(each) is not None for each in classes):
        raise InputError(
            f"{where}: labels are texts, and classes= has {named}; name the label's values in their order, as "
            "classes=('no', 'yes')"
        )
    if labels.dtype.kind == "f":
        raise InputError(
            f"{where}: labels are real numbers, and classes= has {named}; for a real-valued label say classes=None and "
            f"{REAL_LOSS}"
        )
    raise InputError(
        f"{where}: some labels are none of classes=, which has {named}; name all values, more than two with "
        f"{CLASSES_LOSS}"
    )
