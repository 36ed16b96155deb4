"""Search for canaries in bytes, files and other processes' memory, also packed or compressed."""

from __future__ import annotations

import base64
import bz2
import contextlib
import io
import lzma
import multiprocessing
import os
import re
import shutil
import sqlite3
import struct
import tempfile
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from tests.locality.canaries import Needle

CHUNK, BLOCK, OVERLAP = 1 << 24, 1 << 17, 1 << 8
PAGE = os.sysconf("SC_PAGE_SIZE")
NEAR = 64  # bytes within which two weak forms make a find
UNPACKED = 1 << 26  # bytes that one compressed stream may give
MAGICS = (
    b"\x1f\x8b\x08",
    b"\x78\x01",
    b"\x78\x5e",
    b"\x78\x9c",
    b"\x78\xda",
    b"BZh",
    b"\xfd7zXZ\x00",
    b"\x28\xb5\x2f\xfd",
    b"\x04\x22\x4d\x18",
    b"PK\x03\x04",
    b"PAR1",
)
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{20,}")
_HEX = re.compile(rb"(?:[0-9a-fA-F]{2}){16,}")


@dataclass
class Finds:
    """Forms found, by owner, and the number of bytes searched."""

    by_owner: dict[str, set[str]] = field(default_factory=partial(defaultdict, set))
    scanned: int = 0
    unpacked: int = 0
    streams: int = 0

    def owners(self) -> set[str]:
        return set(self.by_owner)

    def add(self, other: Finds) -> None:
        for owner, forms in other.by_owner.items():
            self.by_owner[owner] |= forms
        self.scanned += other.scanned
        self.unpacked += other.unpacked
        self.streams += other.streams


class Scanner:
    """Tables of all needles; one pass over the bytes looks for all of them at once."""

    def __init__(self, needles: Iterable[Needle]) -> None:
        self._at: dict[int, list[Needle]] = defaultdict(list)
        self._marked = np.zeros(1 << 16, bool)
        self._magic = np.zeros(1 << 16, bool)
        self._fours = np.zeros(1 << 22, bool)
        for needle in needles:
            four = needle.text[needle.anchor : needle.anchor + 4]
            self._at[int.from_bytes(four, "little")].append(needle)
            self._marked[int.from_bytes(four[:2], "little")] = True
        for four in self._at:
            self._fours[_bucket(np.array([four], np.uint32))] = True
        for magic in MAGICS:
            self._magic[int.from_bytes(magic[:2], "little")] = True
        self._marked |= self._magic

    def data(self, data: bytes, *, depth: int = 4, encoded: bool = True) -> Finds:
        """Finds in `data`, in compressed streams and archives in it, and (`encoded`) in its base64 and hex."""
        finds = Finds()
        self._into(finds, data, depth, encoded)
        return finds

    def file(self, path: Path) -> Finds:
        """Finds in a file; in a SQLite file also in every cell, since long values span several pages."""
        data = path.read_bytes()
        finds = self.data(data)
        if data.startswith(b"SQLite format 3\0"):
            self._into(finds, b"\0\0".join(_cells(path)), 4, True)
        return finds

    def memory(self, pid: int, files_below: Path) -> Finds:
        """Finds in a process's writable memory, and in files below a folder that it has mapped."""
        finds = Finds()
        with contextlib.ExitStack() as files:
            try:
                memory = files.enter_context(open(f"/proc/{pid}/mem", "rb", buffering=0))
                pages = files.enter_context(open(f"/proc/{pid}/pagemap", "rb", buffering=0))
                regions = list(_regions(pid, files_below))
            except (FileNotFoundError, ProcessLookupError):  # the process of a flow run has ended
                return finds
            for region in regions:
                for begin, end in _in_use(pages.fileno(), *region):
                    for at in range(begin, end, CHUNK):
                        length = min(CHUNK + OVERLAP, end - at)
                        with contextlib.suppress(OSError):  # the process has freed the region
                            self._into(finds, os.pread(memory.fileno(), length, at), 3, False)
        return finds

    def memories(self, places: dict[str, list[int]], files_below: Path) -> dict[str, Finds]:
        """Finds of `memory` for the processes of each place, on all cores.

        Uses eight cores at most: a container may show all cores of its host.
        """
        found = {place: Finds() for place in places}
        context = multiprocessing.get_context("forkserver")
        with ProcessPoolExecutor(min(os.cpu_count() or 1, 8), context) as pool:
            pids = [(place, pid) for place, each in places.items() for pid in each]
            searches = [(place, pool.submit(self.memory, pid, files_below)) for place, pid in pids]
            for place, finds in searches:
                found[place].add(finds.result())
        return found

    def _into(self, finds: Finds, data: bytes, depth: int, encoded: bool) -> None:
        finds.scanned += len(data)
        for start in range(0, max(len(data), 1), CHUNK):
            chunk = data[start : start + CHUNK + OVERLAP] if len(data) > CHUNK + OVERLAP else data
            streams = self._chunk(finds, chunk)
            if depth:
                for inner in _unpacked(chunk, streams):
                    finds.streams += 1
                    finds.unpacked += len(inner)
                    self._into(finds, inner, depth - 1, encoded)
            if chunk is data:
                break
        if encoded and depth:
            for inner in _decoded(data):
                self._into(finds, inner, depth - 1, encoded)

    def _chunk(self, finds: Finds, chunk: bytes) -> list[int]:
        """Records the needles in `chunk`; returns possible starts of compressed streams."""
        if len(chunk) < 4:
            return []
        begins: list[np.ndarray] = []
        # Blocks fit the processor's cache; each includes one byte of the next.
        for block in range(0, len(chunk), BLOCK):
            for odd in (0, 1):
                count = min(BLOCK, len(chunk) - block - odd) // 2
                pairs = np.frombuffer(chunk, "<u2", count, block + odd)
                begins.append(np.flatnonzero(self._marked[pairs]) * 2 + block + odd)
        marked = np.concatenate(begins)
        marked = marked[marked <= len(chunk) - 4]
        fours = np.ndarray((len(chunk) - 3,), "<u4", chunk, 0, (1,))[marked]
        keep = self._fours[_bucket(fours)]
        magics = marked[self._magic[fours & 0xFFFF]]
        weak: dict[tuple[str, str], list[tuple[int, bytes]]] = defaultdict(list)
        for place, four in zip(marked[keep].tolist(), fours[keep].tolist(), strict=True):
            for needle in self._at.get(four, ()):
                begin = place - needle.anchor
                if begin < 0 or not chunk.startswith(needle.text, begin):
                    continue
                if needle.weak:
                    weak[needle.owner, needle.form].append((begin, needle.text))
                else:
                    finds.by_owner[needle.owner].add(needle.form)
        for (owner, form), seen in weak.items():
            seen.sort()
            if any(b - a <= NEAR and not _same(x, y) for (a, x), (b, y) in pairwise(seen)):
                finds.by_owner[owner].add(form)
        return sorted(magics.tolist())


def _same(one: bytes, other: bytes) -> bool:
    """True if two weak forms may be the same text, rounded to a digit more or less."""
    return one[:-2] in other or other[:-2] in one


def _bucket(fours: np.ndarray) -> np.ndarray:
    return (fours.astype(np.uint32) * np.uint32(2654435761)) >> np.uint32(10)


def _regions(pid: int, files_below: Path) -> Iterator[tuple[int, int]]:
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, rights, _, _, inode, *path = line.split(maxsplit=5)
        mapped = path[0] if path else ""
        if "r" not in rights or mapped in ("[vvar]", "[vsyscall]", "[vdso]"):
            continue
        if "w" in rights or inode == "0" or mapped.startswith(str(files_below)):
            begin, end = span.split("-")
            yield int(begin, 16), int(end, 16)


def _in_use(pagemap: int, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Spans of a region whose pages exist, in memory or swapped: allocators reserve unused gigabytes."""
    entries = np.frombuffer(os.pread(pagemap, (end - begin) // PAGE * 8, begin // PAGE * 8), "<u8")
    used = np.concatenate([[0], (entries >> np.uint64(62)) > 0, [0]]).astype(np.int8)
    edges = np.flatnonzero(np.diff(used))
    for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield begin + first * PAGE, begin + last * PAGE


def _cells(path: Path) -> Iterator[bytes]:
    """Every cell of a copy of a database and its write-ahead file."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy.db"
        for ending in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(f"{path}{ending}", f"{copy}{ending}")
        with contextlib.closing(sqlite3.connect(copy)) as database:
            database.text_factory = bytes
            for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                for row in database.execute(f'SELECT * FROM "{table.decode()}"'):
                    for cell in row:
                        if isinstance(cell, bytes):
                            yield cell
                        elif isinstance(cell, float):
                            yield struct.pack("<d", cell) + repr(cell).encode()


def _unpacked(data: bytes, places: list[int]) -> Iterator[bytes]:
    """Contents of the compressed streams, archives and Parquet files that begin at `places`."""
    done = 0
    for place in places:
        head = data[place : place + 6]
        if place < done:  # inside an unpacked stream
            continue
        for magic, unpack in _UNPACKERS:
            if head.startswith(magic):
                inner, used = unpack(data, place)
                if len(inner) >= 4:
                    yield inner
                    done = place + used
                break


def _deflated(wbits: int) -> Callable[[bytes, int], tuple[bytes, int]]:
    def unpack(data: bytes, place: int) -> tuple[bytes, int]:
        stream, out, at = zlib.decompressobj(wbits), b"", place
        with contextlib.suppress(zlib.error):
            out = stream.decompress(data[at : at + 512], UNPACKED)
            at += 512
            # Most apparent beginnings in memory are false: they fail, or give nearly no bytes.
            if not stream.eof and len(out) >= 16:
                out += stream.decompress(data[at:], UNPACKED)
        return out, 0

    return unpack


def _streamed(make: Any) -> Callable[[bytes, int], tuple[bytes, int]]:
    def unpack(data: bytes, place: int) -> tuple[bytes, int]:
        out, stream = b"", make()
        with contextlib.suppress(OSError, EOFError, lzma.LZMAError):
            for at in range(place, len(data), 4096):
                out += stream.decompress(data[at : at + 4096])
        return out, 0

    return unpack


def _arrow(codec: str) -> Callable[[bytes, int], tuple[bytes, int]]:
    def unpack(data: bytes, place: int) -> tuple[bytes, int]:
        out = b""
        with contextlib.suppress(OSError, pa.ArrowException):
            stream = pa.CompressedInputStream(pa.BufferReader(data[place:]), codec)
            while len(out) < UNPACKED and (piece := stream.read(1 << 16)):
                out += piece
        return out, 0

    return unpack


def _zip(data: bytes, place: int) -> tuple[bytes, int]:
    with contextlib.suppress(Exception), zipfile.ZipFile(io.BytesIO(data[place:])) as archive:
        return b"\0\0".join(archive.read(name) for name in archive.namelist()), len(data)
    return b"", 0


def _parquet(data: bytes, place: int) -> tuple[bytes, int]:
    with contextlib.suppress(Exception):
        table = pa.parquet.read_table(pa.BufferReader(data[place:]))
        columns = (column.to_numpy() for column in table.columns)
        return b"\0\0".join(c.tobytes() if c.dtype != object else repr(c.tolist()).encode() for c in columns), len(data)
    return b"", 0


_UNPACKERS: list[tuple[bytes, Callable[[bytes, int], tuple[bytes, int]]]] = [
    (b"\x1f\x8b\x08", _deflated(31)),
    (b"\x78", _deflated(15)),
    (b"BZh", _streamed(bz2.BZ2Decompressor)),
    (b"\xfd7zXZ", _streamed(lzma.LZMADecompressor)),
    (b"\x28\xb5\x2f\xfd", _arrow("zstd")),
    (b"\x04\x22\x4d\x18", _arrow("lz4")),
    (b"PK\x03\x04", _zip),
    (b"PAR1", _parquet),
]


def _decoded(data: bytes) -> Iterator[bytes]:
    """Long runs of base64, from each of four beginnings, and of hex, decoded and joined."""
    runs = [run.replace(b"-", b"+").replace(b"_", b"/") for run in _BASE64.findall(data)]
    for skip in range(4) if runs else ():
        yield b"\0\0".join(base64.b64decode(run[skip : skip + (len(run) - skip) // 4 * 4]) for run in runs)
    if hexes := _HEX.findall(data):
        yield b"\0\0".join(bytes.fromhex(run.decode()) for run in hexes)
