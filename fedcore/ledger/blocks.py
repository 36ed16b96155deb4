"""Many small records in the order in which they came, whole blocks of them in a temporary file if that is wanted."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator
from itertools import count
from typing import IO

BLOCK = 4096
"""Records of a block."""


class Blocks:
    """Records of `size` bytes each, by their place from 0.

    `spill`: blocks that are full go to a file without a name, which ends with the process; what it has no room for
    stays in memory. For records of simulations alone: other processes of the same user could reach that file.
    A record is there by one operation: whoever is interrupted has it, or not.
    """

    def __init__(self, size: int, spill: bool) -> None:
        self._size, self._spill = size, spill
        # One attribute: a block that is full is in the file and out of memory by one assignment.
        self._parts: tuple[tuple[_Stored | bytearray, ...], bytearray] = ((), bytearray())

    def __len__(self) -> int:
        full, last = self._parts
        return len(full) * BLOCK + len(last) // self._size

    def __getitem__(self, place: int) -> bytes:
        full, last = self._parts
        block, at = divmod(place, BLOCK)
        return _part(full[block] if block < len(full) else last, at * self._size, self._size)

    def __setitem__(self, place: int, record: bytes) -> None:
        full, last = self._parts
        block, at = divmod(place, BLOCK)
        target, first = full[block] if block < len(full) else last, at * self._size
        if isinstance(target, _Stored):
            target.write(first, record)
        else:
            target[first : first + self._size] = record

    def __iter__(self) -> Iterator[bytes]:
        """All bytes, a block at a time."""
        full, last = self._parts
        for block in full:
            yield _part(block, 0, BLOCK * self._size)
        yield bytes(last)

    def append(self, record: bytes) -> None:
        full, last = self._parts
        if len(last) == BLOCK * self._size:
            block = _stored(last) if self._spill else last
            last = bytearray()
            self._parts = (*full, block), last
        last += record


class _File:
    """The file of all blocks of one length: one for all silos, of which there may be more than a process has files.

    Without a lock, which an interrupted thread could keep: each step is one operation.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._new = count()
        self._free: list[int] = []

    def put(self, data: bytearray) -> _Stored:
        """Raises OSError if there is no room."""
        file = self._file = self._file or tempfile.TemporaryFile(prefix="fedcore-")  # noqa: SIM115
        try:
            slot = self._free.pop()
        except IndexError:
            slot = next(self._new)
        stored = _Stored(file, slot * len(data))
        weakref.finalize(stored, self._free.append, slot).atexit = False
        stored.write(0, data)
        return stored


class _Stored:
    """A block in the file, at `at`."""

    def __init__(self, file: IO[bytes], at: int) -> None:
        self._file, self._at = file, at

    def write(self, first: int, data: bytes | bytearray) -> None:
        written = os.pwrite(self._file.fileno(), data, self._at + first)
        if written != len(data):
            raise OSError("a temporary file took a part of what was written to it")

    def read(self, first: int, length: int) -> bytes:
        found = os.pread(self._file.fileno(), length, self._at + first)
        if len(found) != length:
            raise OSError("a temporary file has lost a part of what was written to it")
        return found


_files: dict[int, _File] = {}
"""By the length of their blocks, of which there is one but in tests."""


def _stored(data: bytearray) -> _Stored | bytearray:
    """The data in the file, or as they are if it takes none."""
    try:
        return _files.setdefault(len(data), _File()).put(data)
    except OSError:
        return data


def _part(block: _Stored | bytearray, first: int, length: int) -> bytes:
    return block.read(first, length) if isinstance(block, _Stored) else bytes(block[first : first + length])


os.register_at_fork(after_in_child=_files.clear)  # a child that went on in its parent's file would overwrite it
