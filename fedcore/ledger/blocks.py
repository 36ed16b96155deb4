"""Many small records in order of arrival; full blocks of them can move to a temporary file."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator
from itertools import count
from typing import IO

BLOCK = 4096
"""Records per block."""


class Blocks:
    """Records of `size` bytes each, by place from 0, in blocks of `records`.

    `spill`: full blocks move to a file without a name, which ends with the process; blocks that it has no room for stay
    in memory. For records of simulations only: other processes of the same user could reach that file.
    One operation adds a record: after an interruption it is whole or absent.
    """

    def __init__(self, size: int, spill: bool, records: int | None = None) -> None:
        self._size, self._spill, self._most = size, spill, records or BLOCK
        # One attribute, so that one assignment moves a full block from memory to the file.
        self._parts: tuple[tuple[_Stored | bytearray, ...], bytearray] = ((), bytearray())

    def __len__(self) -> int:
        full, last = self._parts
        return len(full) * self._most + len(last) // self._size

    def __getitem__(self, place: int) -> bytes:
        full, last = self._parts
        block, at = divmod(place, self._most)
        return _part(full[block] if block < len(full) else last, at * self._size, self._size)

    def __setitem__(self, place: int, record: bytes) -> None:
        full, last = self._parts
        block, at = divmod(place, self._most)
        target, first = full[block] if block < len(full) else last, at * self._size
        if isinstance(target, _Stored):
            target.write(first, record)
        else:
            target[first : first + self._size] = record

    def __iter__(self) -> Iterator[bytes]:
        """All bytes, a block at a time."""
        full, last = self._parts
        for block in full:
            yield _part(block, 0, self._most * self._size)
        yield bytes(last)

    def append(self, record: bytes) -> None:
        full, last = self._parts
        if len(last) == self._most * self._size:
            block = _stored(last) if self._spill else last
            last = bytearray()
            self._parts = (*full, block), last
        last += record


class _File:
    """The file of all blocks of one length, one for all silos: a process may open fewer files than it has silos.

    It has no lock, which an interrupted thread could hold forever; each step is one operation.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._new = count()
        self._free: list[int] = []

    def put(self, data: bytearray) -> _Stored:
        """Stores a block. Raises OSError if there is no room."""
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
    """A block in the file, at offset `at`."""

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
"""By length of block; only tests use more than one length."""


def _stored(data: bytearray) -> _Stored | bytearray:
    """Moves `data` to the file, or returns them unchanged if there is no room."""
    try:
        return _files.setdefault(len(data), _File()).put(data)
    except OSError:
        return data


def _part(block: _Stored | bytearray, first: int, length: int) -> bytes:
    return block.read(first, length) if isinstance(block, _Stored) else bytes(block[first : first + length])


os.register_at_fork(after_in_child=_files.clear)  # a child that used its parent's file would overwrite it
