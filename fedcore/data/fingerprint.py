"""Keyed digests of a silo's records, which recognise them under another name or encoding.

`content` is the digest of the file's bytes. `records` is that of the values of all columns of the file, whatever the
order of rows and columns and the columns' names. Nor does it depend on format (CSV or Parquet), compression, and
precision (single or double).

Both are keyed, so they reveal nothing about records without the key. They do not recognise a copy with one record or
column more or less, or with a value that differs in single precision. Nor do they find a copy that was altered to
escape. Such a copy counts as other records, and the silo's operator must declare its account
(`fedcore budget register`).
"""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedcore.data import columns
from fedcore.data.cells import as_number, decoded, values_of
from fedcore.data.silo_file import SiloSource, guarded

_CHUNK = 2**20
_ODD = np.uint64(0x9E3779B97F4A7C15)
_LANES = 2
_MOST_CACHED = 4096
_CACHED: dict[tuple[str, int, int, int, int, int], str] = {}


class Fingerprint(NamedTuple):
    """HMAC-SHA-256 (hex) of a file's bytes (`content`), and of its unordered values (`records`)."""

    content: str
    records: str


def content_digest(source: SiloSource, key: bytes) -> str:
    """HMAC-SHA-256 (hex) of the file's bytes. Raises SiloError with a code of CODES."""

    def read(source: SiloSource) -> str:
        found = hmac.new(key, b"content", "sha256")
        with columns.opened(source.path, source.format) as file:
            while chunk := file.read(_CHUNK):
                found.update(chunk)
        return found.hexdigest()

    return guarded(source, read)


def file_digest(source: SiloSource) -> str:
    """`content_digest` without a secret, never to be shown; cached while the file is unchanged.

    Raises SiloError with a code of CODES if the file cannot be read.
    """
    try:
        found = os.stat(source.path)
    except OSError:
        return content_digest(source, b"")
    stamp = source.path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    if stamp not in _CACHED:
        while len(_CACHED) >= _MOST_CACHED:
            del _CACHED[next(iter(_CACHED))]
        _CACHED[stamp] = content_digest(source, b"")
    return _CACHED[stamp]


def records_digest(source: SiloSource, key: bytes) -> str:
    """HMAC-SHA-256 (hex) of the records' values. Raises SiloError with a code of CODES."""
    return guarded(source, lambda source: _records_digest(source, key))


def fingerprint(source: SiloSource, key: bytes) -> Fingerprint:
    """Both digests of a silo's file. Raises SiloError with a code of CODES if it cannot be read."""
    return Fingerprint(content_digest(source, key), records_digest(source, key))


def _records_digest(source: SiloSource, key: bytes) -> str:
    """Digest that ignores order: mixed words of cells add up to rows, mixed rows to totals."""
    names = list(columns.header(source.path, source.format))
    table = columns.read_columns(source.path, source.format, names)
    sums = np.zeros((_LANES, table.num_rows), dtype=np.uint64)
    for name in names:
        words = _words(table.column(name), key)
        for lane in range(_LANES):
            sums[lane] += _mixed(words, key, f"cell {lane}")
    totals = [np.add.reduce(_mixed(rows, key, f"row {lane}"), dtype=np.uint64) for lane, rows in enumerate(sums)]
    summary = ",".join(map(str, (table.num_rows, len(names), *totals)))
    return hmac.new(key, b"records" + summary.encode(), "sha256").hexdigest()


def _words(column: pa.ChunkedArray, key: bytes) -> NDArray[np.uint64]:
    """A word for each cell (n,): a number's bits in single precision, else a keyed digest."""
    column = decoded(column)
    kind = column.type
    if (pa.types.is_floating(kind) or pa.types.is_integer(kind)) and not column.null_count:
        return _number_words(column.cast(pa.float64(), safe=False).to_numpy())
    if pa.types.is_nested(kind):
        return np.array([_word(str(cell), key) for cell in column.to_pylist()], dtype=np.uint64)
    cells, places = values_of(column)
    return np.array([_word(cell, key) for cell in cells], dtype=np.uint64)[places]


def _number_words(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        single = values.astype(np.float32) + np.float32(0.0)  # -0.0 becomes 0.0
    single[np.isnan(single)] = np.float32(np.nan)
    return single.view(np.uint32).astype(np.uint64)


def _word(cell: object, key: bytes) -> int:
    number = as_number(cell)
    if number is None and not isinstance(cell, str | type(None)):
        try:
            number = float(cell)  # type: ignore[arg-type]  # a decimal
        except (TypeError, ValueError, OverflowError):
            number = None
    if number is not None:
        try:
            return int(_number_words(np.array([float(number)]))[0])
        except OverflowError:
            pass
    text = "" if cell is None else str(cell).strip()
    return int.from_bytes(hmac.digest(key, b"cell" + text.encode(errors="surrogatepass"), "sha256")[:8], "little")


def _mixed(words: NDArray[np.uint64], key: bytes, purpose: str) -> NDArray[np.uint64]:
    """Each word after a keyed, bijective mixing of 64 bits (splitmix64, twice)."""
    secret = np.frombuffer(hashlib.sha256(key + purpose.encode()).digest()[:16], dtype=np.uint64)
    mixed = words
    with np.errstate(over="ignore"):
        for word in secret:
            mixed = (mixed ^ word) + _ODD
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed = mixed ^ (mixed >> np.uint64(31))
    return mixed
