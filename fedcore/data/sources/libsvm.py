"""Files of LIBSVM's sparse text form, split at random: silos of equal size, and a test set that none of them holds.

A line is `label index:value ...`, indices from 1, what is not there 0. It is the form of the PASCAL challenge's
"epsilon" (400,000 records, 2,000 features), on which Huo et al. try DP-FCRN. The file is read in blocks, each of which
goes straight to the silos' arrays, so that what is held is the dense table once. Nothing is downloaded.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import math
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedcore.arrays import Matrix, Vector
from fedcore.data.sources.streams import silo_names, stream
from fedcore.data.table import Generated, Table
from fedcore.errors import InputError
from fedcore.hyperparameters import Count, Real, Section

_SPLIT = 115  # purpose of a random stream
_BLOCK = 2000  # lines that are parsed at a time
_OPENERS: dict[str, Callable[[Path, str], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)


class LibsvmData(Section):
    """Records of a file in LIBSVM's form, dealt at random to silos of equal size."""

    source: Literal["libsvm"] = "libsvm"
    path: str
    """The file, plain or with .gz, .bz2 or .xz at its end; relative paths start at the working folder."""
    features: Count = Field(ge=1, le=1_000_000)
    """d: public, not found in the file. An index beyond it is refused."""
    classes: tuple[Real, Real] = (-1.0, 1.0)
    """The two labels as the file writes them; the second is +1."""
    records: Count | None = Field(None, ge=4)
    """Of how many records from the beginning of the file; null: all."""
    silos: Count = Field(40, ge=1)
    """N: each gets floor(n / N) of the n records that are not set aside; what is left of them, fewer than N, nobody."""
    test_fraction: Real = Field(0.2, gt=0, lt=1)
    """Part of all records that is set aside first, rounded up: the public test set."""

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
    """Records that each silo trains on, by name and in order: lines are counted, not parsed.

    Raises InputError for a file that is missing, damaged or shorter than `records`, and for silos with fewer than 2.
    """
    records = _records(data)
    each = (records - _aside(records, data)) // data.silos
    if each < 2:
        raise InputError(
            f"data.silos = {data.silos}: {records} records, of which data.test_fraction = {data.test_fraction} sets "
            f"aside {_aside(records, data)}, leave {each} to each silo, which needs at least 2; choose fewer silos"
        )
    return dict.fromkeys(silo_names(data.silos), each)


def libsvm(data: LibsvmData, seed: int) -> Generated:
    """Silos `silo-000`, ... and the test set, drawn by the seed: no record is in two of them.

    Raises InputError as `silo_sizes` does, and for a line that does not parse, with its number.
    """
    sizes = list(silo_sizes(data).values())
    records = _records(data)
    order = stream(seed, _SPLIT).permutation(records)
    parts = np.split(order, np.cumsum([_aside(records, data), *sizes]))[: 1 + len(sizes)]
    owner, place = np.full(records, -1), np.zeros(records, dtype=np.int64)
    tables = []
    for number, rows in enumerate(parts):
        rows.sort()
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
    return Generated(names, "label", dict(zip(silo_names(data.silos), tables[1:], strict=True)), tables[0])


def fingerprint(data: LibsvmData) -> str:
    """SHA-256 (hex) of the file's plain bytes, whatever its name. Raises InputError as `silo_sizes`."""
    return _scanned(data)[1]


def _records(data: LibsvmData) -> int:
    there = _scanned(data)[0]
    if data.records is not None and data.records > there:
        raise InputError(f"data.records = {data.records}: file {data.path} has {there}")
    return there if data.records is None else data.records


def _aside(records: int, data: LibsvmData) -> int:
    """Test records, rounded up as scikit-learn's splits are."""
    return math.ceil(data.test_fraction * records - 1e-9)


def _scanned(data: LibsvmData) -> tuple[int, str]:
    path = Path(data.path).absolute()
    try:
        stat = path.stat()
    except OSError as error:
        raise InputError(f"data.path = {data.path}: cannot be read ({error.strerror})") from None
    return _lines(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=64)  # a sweep asks for every cell
def _lines(path: Path, size: int, modified: int) -> tuple[int, str]:
    """How many lines have a record, and the SHA-256 of all."""
    total, lines = hashlib.sha256(), 0
    with _opened(path) as file:
        for line in file:
            total.update(line)
            lines += _has_record(line)
    if lines == 0:
        raise InputError(f"file {path}: has no records")
    return lines, total.hexdigest()


def _has_record(line: bytes) -> bool:
    return bool(line.partition(b"#")[0].strip())


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """The file's plain bytes; a failure to open or unpack it becomes an InputError."""
    try:
        with _OPENERS.get(path.suffix, open)(path, "rb") as file:
            yield file
    except OSError as error:
        why = f"cannot be read ({error.strerror})" if error.strerror else "is damaged or not packed as its name says"
        raise InputError(f"file {path}: {why}") from None
    except _DAMAGED:
        raise InputError(f"file {path}: is damaged or not packed as its name says") from None


def _blocks(data: LibsvmData) -> Iterator[tuple[Matrix, NDArray[np.int64]]]:
    """Dense features (n, d) and numbers of classes (n,) of the file's records, a block at a time."""
    wanted = _records(data)
    with _opened(Path(data.path).absolute()) as file:
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
    """Raises ValueError for a line that does not parse, and an index of 0 or beyond d."""
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
