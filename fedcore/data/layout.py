"""Layout of silos on disk below one root, and atomic writes of their folders.

- <root>/<dataset>/recipe.json                        configuration and seed of a generated data set
- <root>/<dataset>/<silo>/records.parquet             a generated silo's records, as raw columns
- <root>/<dataset>/<silo>/manifest.json               version, columns and number of records
- <root>/<dataset>/public/test.parquet                records that no silo holds
- <root>/<dataset>/public/constants.parquet           more such records, for computing public constants
- <root>/<dataset>/<origin>/pca-<d>/projection.bin    constants of a projection, with their recipe.json; released
                                                      ones are in <root>/<dataset>/<statistics id>/released/
- <root>/files/<statistics id>/released/scaling/      released centres and scales of columns, with their recipe.json
- <root>/files/<silo>/<digest of path>/manifest.json  version and path of a user's own file

Each folder is built under a temporary name, flushed, and renamed. If two processes write one folder, the second uses
the first's. Manifests hold a random version id and public sizes: no digest and no statistic of records.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from fedcore.bounded_file import read_within
from fedcore.data.constants.pca import Origin, Projection
from fedcore.data.constants.scaling import Scales
from fedcore.data.table import Generated, Table
from fedcore.errors import InputError
from fedcore.limits import LARGEST_CONSTANTS

FILES = "files"
"""Name of the data set of all user files: a silo has one folder, hence one account, in all experiments."""


def dataset_name(source: str, recipe: Mapping[str, Any]) -> str:
    """Folder name of a generated data set: `source` and a digest of its recipe."""
    return f"{source}-{_digest(json.dumps(recipe, sort_keys=True))}"


def write_generated(
    root: Path, dataset: str, recipe: Mapping[str, Any], silos: Sequence[str], make: Callable[[], Generated]
) -> dict[str, dict[str, Any]]:
    """Writes the data set that `make` generates unless it exists; returns silos' manifests.

    Raises InputError, naming the folder, if it cannot be written or holds something else.
    """

    def fill(folder: Path) -> None:
        made = make()
        for silo, table in made.silos.items():
            (folder / silo).mkdir()
            _write_table(folder / silo / "records.parquet", made, table)
            columns = [{"name": name, "type": _type_name(table.features)} for name in made.features]
            columns.append({"name": made.label, "type": _type_name(table.labels)})
            columns += [{"name": name, "type": "int64"} for name in table.more]
            manifest = {
                "silo": silo,
                "version": _new_version(),
                "records": len(table.labels),
                "columns": columns,
                "features": list(made.features),
                "label": made.label,
            }
            _write_json(folder / silo / "manifest.json", manifest)
        (folder / "public").mkdir()
        _write_table(folder / "public" / "test.parquet", made, made.test)
        if made.public is not None:
            _write_table(folder / "public" / "constants.parquet", made, made.public)
        _write_json(folder / "recipe.json", recipe)

    folder = root / dataset
    _publish(folder, fill)
    keys = ("version", "records", "features", "label")
    return {silo: _read_json(folder / silo / "manifest.json", folder, keys) for silo in silos}


def register_file(root: Path, silo: str, path: str) -> str:
    """Version id of a user's file as data of `silo`: random for a new path, then always the same.

    Raises InputError if the manifest cannot be written or read.
    """
    real = os.path.realpath(path)
    folder = root / FILES / silo / _digest(real)
    manifest = {"silo": silo, "version": _new_version(), "path": real}
    _publish(folder, lambda building: _write_json(building / "manifest.json", manifest))
    return str(_read_json(folder / "manifest.json", folder, ("version",))["version"])


def write_projection(
    folder: Path, origin: Origin, dimension: int, statement: str, fit: Callable[[], Projection]
) -> tuple[Path, Projection]:
    """The projection of a data set's `folder` and its file; `fit` computes a missing one.

    The file fixes the last bits, which differ between machines and library versions and would change the prepared
    records. Raises InputError, naming the folder, if it cannot be written or does not match its recipe.
    """
    path = folder / origin / f"pca-{dimension}" / "projection.bin"
    return path, _recorded(path, origin, dimension, statement, fit, Projection)


def write_scales(folder: Path, columns: int, statement: str, fit: Callable[[], Scales]) -> tuple[Path, Scales]:
    """As `write_projection`, for released centres and scales of `columns` columns."""
    path = folder / "released" / "scaling" / "scales.bin"
    return path, _recorded(path, "released", columns, statement, fit, Scales)


C = TypeVar("C", Projection, Scales)


def _recorded(path: Path, origin: Origin, dimension: int, statement: str, fit: Callable[[], C], kind: type[C]) -> C:
    """The constants in `path`; computes and writes them unless the file exists."""
    place = path.parent

    def fill(building: Path) -> None:
        made = fit()
        _write(building / path.name, made.to_bytes())
        recipe = {"origin": origin, "dimension": dimension, "statement": statement, "sha256": made.digest}
        _write_json(building / "recipe.json", recipe)

    _publish(place, fill)
    expected = _read_json(place / "recipe.json", place, ("sha256",))
    try:
        found = kind.from_bytes(read_within(path, LARGEST_CONSTANTS))
    except (OSError, ValueError):
        found = None
    if found is None or found.digest != expected["sha256"] or found.dim != dimension:
        raise InputError(
            f"data folder {place}: {path.name} is missing or damaged; move the folder away and it is made again"
        )
    return found


def _publish(folder: Path, fill: Callable[[Path], None]) -> None:
    """Creates `folder` atomically and durably with the files of `fill`, unless it exists."""
    if folder.is_dir():
        return
    building: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", suffix=".tmp", dir=folder.parent))
        fill(building)
        for path in (*building.rglob("*"), building):
            if path.is_dir():
                _flush_folder(path)
        try:
            os.rename(building, folder)
        except OSError:
            if not folder.is_dir():  # else another writer came first
                raise
        else:
            building = None
            _flush_folder(folder.parent)
    except OSError as error:
        raise InputError(
            f"data folder {folder}: cannot be written ({error.strerror or type(error).__name__}); "
            "free some space, change its permissions, or set FEDCORE_HOME to another folder"
        ) from error
    finally:
        if building is not None:
            shutil.rmtree(building, ignore_errors=True)


def _write_table(path: Path, made: Generated, table: Table) -> None:
    """Writes raw columns as Parquet without statistics, which would reveal least and largest."""
    columns = [pa.array(np.ascontiguousarray(column)) for column in table.features.T]
    columns += [pa.array(labels) for labels in (table.labels, *table.more.values())]
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(
        pa.table(columns, names=[*made.features, made.label, *table.more]),
        sink,
        write_statistics=False,
        use_dictionary=False,
    )
    _write(path, sink.getvalue())


def _type_name(values: NDArray[Any]) -> str:
    return "double" if values.dtype == np.float64 else str(values.dtype)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    _write(path, json.dumps(content, indent=1).encode())


def _write(path: Path, data: bytes | pa.Buffer) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read_json(path: Path, folder: Path, keys: Sequence[str]) -> dict[str, Any]:
    """The JSON object in `path` with `keys`. Raises InputError naming `folder`."""
    try:
        content = json.loads(read_within(path))
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict) or any(key not in content for key in keys):
        raise InputError(
            f"data folder {folder}: {path.relative_to(folder)} is missing or damaged; "
            "move the folder away and it is made again"
        )
    return content


def _new_version() -> str:
    return uuid.uuid4().hex


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
