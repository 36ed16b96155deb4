"""Files of LIBSVM's sparse form, split at random into equal silos and a public test set.

A line is `label index:value ...`, with indices from 1; absent values are 0. The PASCAL challenge's "epsilon" (400,000
records, 2,000 features), on which Huo et al. test DP-FCRN, has this form. The file is read in blocks, which are copied
to the silos' arrays, so memory holds the dense table once. Nothing is downloaded.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedcore.arrays import Matrix, Vector
from fedcore.data.sources.equal_parts import dealt, equal_sizes
from fedcore.data.sources.streams import stream
from fedcore.data.sources.text_files import opened, scanned
from fedcore.data.table import Generated, Table
from fedcore.errors import InputError
from fedcore.hyperparameters import Count, Real, Section
from fedcore.limits import MOST_SILOS
from fedcore.paths import LocalPath

_SPLIT = 115  # purpose of a random stream
_BLOCK = 2000  # lines parsed at a time


class LibsvmData(Section):
    """Records of a file in LIBSVM's form, dealt at random to silos of equal size."""

    source: Literal["libsvm"] = "libsvm"
    path: LocalPath
    """The file, plain or with .gz, .bz2 or .xz at its end; relative paths start at the working folder."""
    features: Count = Field(ge=1, le=1_000_000)
    """d: public, not found in the file. An index beyond it is refused."""
    classes: tuple[Real, Real] = (-1.0, 1.0)
    """The two labels as the file writes them; the second is +1."""
    records: Count | None = Field(None, ge=4)
    """Number of records to use, from the beginning of the file; null: all."""
    silos: Count = Field(40, ge=1, le=MOST_SILOS)
    """N: each silo gets floor(n / N) of the n records that are not set aside; the fewer than N others are not used."""
    test_fraction: Real = Field(0.2, gt=0, lt=1)
    """Part of all records set aside first, rounded up, as the public test set."""

    @property
    def label_values(self) -> tuple[int, ...]:
        """The classes, in the order of their numbers."""
        return (0, 1)

    @model_validator(mode="after")
    def _classes_differ(self) -> LibsvmData:
        if self.classes[0] == self.classes[1]:
            raise ValueError(f"data.classes = {list(self.classes)}: the two labels must differ")
        return self


def silo_sizes(data: LibsvmData) -> dict[str, int]:
    """Training records of each silo, by name and in order; counts lines without parsing them.

    Raises InputError for a file that is missing, damaged or shorter than `records`, and for silos with fewer than 2.
    """
    return equal_sizes(_records(data), data.silos, data.test_fraction)


def libsvm(data: LibsvmData, seed: int) -> Generated:
    """Silos `silo-000`, ... and the test set, drawn by the seed; no record is in two of them.

    Raises InputError as `silo_sizes` does, and for a line that does not parse, with its number.
    """
    records = _records(data)
    test, silos = dealt(records, silo_sizes(data), data.test_fraction, stream(seed, _SPLIT))
    owner, place = np.full(records, -1), np.zeros(records, dtype=np.int64)
    tables = []
    for number, rows in enumerate((test, *silos.values())):
        owner[rows], place[rows] = number, np.arange(len(rows))
        tables.append(Table(np.zeros((len(rows), data.features)), np.zeros(len(rows), dtype=np.int64)))
    start = 0
    for X, y in _blocks(data):
        owners, places = owner[start : start + len(y)], place[start : start + len(y)]
        for number in np.unique(owners[owners >= 0]):
            mine = owners == number
            tables[number].features[places[mine]] = X[mine]
            tables[number].labels[places[mine]] = y[mine]
        start += len(y)
    names = tuple(f"x{index}" for index in range(1, data.features + 1))
    return Generated(names, "label", dict(zip(silos, tables[1:], strict=True)), tables[0])


def fingerprint(data: LibsvmData) -> str:
    """SHA-256 (hex) of the file's uncompressed bytes. Raises InputError as `silo_sizes` does."""
    return _scanned(data)[1].hex()


def _records(data: LibsvmData) -> int:
    there = _scanned(data)[0]
    if data.records is not None and data.records > there:
        raise InputError(f"data.records = {data.records}: file {data.path} has {there}")
    return there if data.records is None else data.records


def _scanned(data: LibsvmData) -> tuple[int, bytes]:
    path = Path(data.path).absolute()
    try:
        lines, digest = scanned(path, _has_record)
    except OSError as error:
        raise InputError(f"data.path = {data.path}: cannot be read ({error.strerror})") from None
    if lines == 0:
        raise InputError(f"file {path}: has no records")
    return lines, digest


def _has_record(line: bytes) -> bool:
    return bool(line.partition(b"#")[0].strip())


def _blocks(data: LibsvmData) -> Iterator[tuple[Matrix, NDArray[np.int64]]]:
    """Dense features (n, d) and numbers of classes (n,) of records, a block at a time."""
    wanted = _records(data)
    with opened(Path(data.path).absolute()) as file:
        numbered = ((number, line) for number, line in enumerate(file, 1) if _has_record(line))
        while wanted and (block := list(islice(numbered, min(_BLOCK, wanted)))):
            wanted -= len(block)
            yield _parsed(data, block)


def _parsed(data: LibsvmData, block: list[tuple[int, bytes]]) -> tuple[Matrix, NDArray[np.int64]]:
    try:
        X, labels = _dense(data, b"".join(line.rstrip(b"\r\n") + b"\n" for _, line in block))
    except (ValueError, OverflowError):
        for number, line in block:
            try:
                _dense(data, line)
            except (ValueError, OverflowError) as error:
                raise _refusal(data, number, line, str(error)) from None
        raise InputError(f"file {data.path}: lines {block[0][0]} to {block[-1][0]} do not parse") from None
    classes = np.full(len(labels), -1)
    for number, value in enumerate(data.classes):
        classes[labels == value] = number
    bad = np.flatnonzero((classes < 0) | ~np.isfinite(X).all(axis=1))
    if len(bad):
        number, line = block[bad[0]]
        why = "a value is not finite"
        if classes[bad[0]] < 0:
            why = f"its label must be one of data.classes = {list(data.classes)}"
        raise _refusal(data, number, line, why)
    return X, classes


def _dense(data: LibsvmData, text: bytes) -> tuple[Matrix, Vector]:
    """Dense features and labels of lines. Raises ValueError for a malformed line or index."""
    from sklearn.datasets import load_svmlight_file

    X, labels = load_svmlight_file(io.BytesIO(text), n_features=data.features, zero_based=False)
    return X.toarray(), labels


def _refusal(data: LibsvmData, number: int, line: bytes, why: str) -> InputError:
    if "input file contains" in why:
        why = f"an index is beyond data.features = {data.features}"
    elif "Invalid index" in why:
        why = "indices begin at 1"
    elif "finite" not in why and "label" not in why:
        why = "it must be: label index:value index:value ..., with indices that rise"
    begins = line[:40].decode(errors="replace").rstrip("\r\n")
    return InputError(f"file {data.path}, line {number}: {why}; it begins {begins!r}")
