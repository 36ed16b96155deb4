"""IDX files, the format of MNIST and EMNIST: magic number, sizes, unsigned bytes; maybe gzipped.

Format: bytes 0 and 1 are zero, byte 2 is the type (8: unsigned byte), byte 3 the number of dimensions; then each size
as a big-endian 32-bit number; then the entries, last index fastest (LeCun, Cortes, Burges, "The MNIST database").
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import InputError

Content = BinaryIO | gzip.GzipFile

_UNSIGNED_BYTE = 8
_CHUNK = 1 << 20
"""Bytes of one read: a damaged header may promise terabytes, and memory grows only with the file's content."""


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The entries of a file of unsigned bytes with `dimensions` dimensions, in its shape.

    Raises InputError, naming file, byte and the right content, for an unreadable file, another kind of file, and a
    length other than in its header. Bytes of a gzipped file are counted after decompression.
    """
    with _opened(path) as file:
        shape = _header(path, file, dimensions)
        start = 4 + 4 * dimensions
        size = _product(shape)
        data = _read(path, file, size + 1, start)
    promise = f"its header promises {' x '.join(map(str, shape))} = {size} bytes from byte {start}"
    if len(data) < size:
        raise InputError(f"file {path}: ends at byte {start + len(data)}, but {promise}, to byte {start + size}")
    if len(data) > size:
        raise InputError(f"file {path}: goes on after byte {start + size}, but {promise}")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


def idx_shape(path: Path, dimensions: int) -> tuple[int, ...]:
    """The sizes in the file's header. Raises InputError as `read_idx` does."""
    with _opened(path) as file:
        return _header(path, file, dimensions)


@contextmanager
def _opened(path: Path) -> Iterator[Content]:
    """The content, decompressed if gzipped: browsers may unpack a download and keep its name."""
    try:
        with open(path, "rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if not zipped:
                yield raw
                return
            with gzip.GzipFile(fileobj=raw) as content:
                yield content
    except OSError as error:
        raise InputError(f"file {path}: cannot be read ({error.strerror or type(error).__name__})") from None


def _header(path: Path, file: Content, dimensions: int) -> tuple[int, ...]:
    """Sizes of an IDX file of unsigned bytes; leaves `file` at its first entry."""
    length = 4 + 4 * dimensions
    header = _read(path, file, length, 0)
    wanted = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if header[:4] != wanted[: len(header)]:
        raise InputError(
            f"file {path}: begins with 0x{header[:4].hex()}, but the magic number of unsigned bytes in {dimensions} "
            f"dimension(s) is 0x{wanted.hex()}"
        )
    if len(header) < length:
        raise InputError(f"file {path}: ends at byte {len(header)}, within its header of {length} bytes")
    return struct.unpack(f">{dimensions}I", header[4:])


def _read(path: Path, file: Content, count: int, start: int) -> bytes:
    """Reads at most `count` bytes; `start`: the number of bytes read before."""
    data = bytearray()
    try:
        while len(data) < count and (chunk := file.read(min(_CHUNK, count - len(data)))):
            data += chunk
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InputError(
            f"file {path}: is not a whole gzip file, it breaks after byte {start + len(data)} of its content; "
            "copy it again"
        ) from None
    return bytes(data)


def _product(shape: tuple[int, ...]) -> int:
    """Number of entries, exact: sizes of a damaged header overflow 64 bits."""
    size = 1
    for length in shape:
        size *= length
    return size
