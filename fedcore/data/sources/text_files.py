"""Text files in a local folder, plain or compressed: their bytes, number of records, and digest."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from fedcore.errors import InputError

_PACKED: dict[str, tuple[Callable[[Path, str], Any], str]] = {
    ".gz": (gzip.open, "gzipped, as its suffix requires"),
    ".bz2": (bz2.open, "compressed as its suffix requires"),
    ".xz": (lzma.open, "compressed as its suffix requires"),
}
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Opens the file's uncompressed bytes. A failure becomes an InputError."""
    unpack, right = _PACKED.get(path.suffix, (open, "text"))
    try:
        with unpack(path, "rb") as file:
            yield file
    except _DAMAGED:
        raise InputError(f"file {path}: is damaged or not {right}") from None
    except OSError as error:
        if path.suffix == ".bz2" and error.strerror is None:  # bz2 raises such an error for damage
            raise InputError(f"file {path}: is damaged or not {right}") from None
        raise InputError(f"file {path}: cannot be read ({error.strerror or type(error).__name__})") from None


def scanned(path: Path, has_record: Callable[[bytes], bool]) -> tuple[int, bytes]:
    """Number of lines with a record, and the SHA-256 (32 bytes) of the whole file."""
    stat = path.stat()
    return _scanned(path, stat.st_size, stat.st_mtime_ns, has_record)


@lru_cache(maxsize=512)  # each cell of a sweep calls it
def _scanned(path: Path, size: int, modified: int, has_record: Callable[[bytes], bool]) -> tuple[int, bytes]:
    total, lines = hashlib.sha256(), 0
    with opened(path) as file:
        for line in file:
            total.update(line)
            lines += has_record(line)
    return lines, total.digest()
