"""Small files that SQLite never reads to an end, or not in any memory: pages that are linked to each other.

Opening and verifying one ends, soon, in little memory, with a sentence. Each runs in a child process, which has a
minute.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sqlite3
import struct
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from fedcore.accounting.filters import Charge
from fedcore.errors import SiloError
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.ledger.storage.verify import faults
from tests.faults.tampering import change
from tests.faults.test_ledger_kills import row

PAGE, PATIENCE = 4096, 60.0
MOST_MB = 400
"""Megabytes by which a process may grow when it opens a ledger; to trust the file takes thousands."""


def interior(children: list[int], first: int = 0) -> bytes:
    """An inner page of a table's tree; `first`: where it begins on its page."""
    page, at, places = bytearray(PAGE), PAGE, b""
    for child in children[:-1]:
        at -= 5
        page[at : at + 5] = struct.pack(">I", child) + b"\x01"
        places += struct.pack(">H", at)
    page[first : first + 12] = struct.pack(">BHHHBI", 5, 0, len(children) - 1, at, 0, children[-1])
    page[first + 12 : first + 12 + len(places)] = places
    return bytes(page)


def leaf(cells: list[bytes]) -> bytes:
    page, at, places = bytearray(PAGE), PAGE, b""
    for cell in cells:
        at -= len(cell)
        page[at : at + len(cell)] = cell
        places += struct.pack(">H", at)
    page[: 8 + len(places)] = struct.pack(">BHHHB", 13, 0, len(cells), at, 0) + places
    return bytes(page)


def varint(value: int) -> bytes:
    found = [value & 127]
    while value := value >> 7:
        found.append(value & 127 | 128)
    return bytes(reversed(found))


def write(path: Path, data: bytearray, claimed: int = 0) -> None:
    """Writes the file with `claimed` pages in its header, or its real number; holes take no space on the disk."""
    pages = max(claimed, len(data) // PAGE)
    data[28:32], data[92:96] = struct.pack(">I", pages), data[24:28]
    path.write_bytes(data)
    os.truncate(path, pages * PAGE)


def root_of(path: Path, table: str = "entries") -> int:
    with closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]


def without_end(data: bytearray, low: int) -> int:
    """A tree of four levels of 500 below which there is always the same page; the number of its root."""
    for _ in range(4):
        data += interior([low] * 500)
        low = len(data) // PAGE
    return low


def rows_without_end(path: Path, table: str = "entries") -> None:
    """The leaf of the rows hangs 62 billion times under their table."""
    root, data = root_of(path, table), bytearray(path.read_bytes())
    data += data[(root - 1) * PAGE : root * PAGE]
    top = without_end(data, len(data) // PAGE)
    data[(root - 1) * PAGE : root * PAGE] = data[(top - 1) * PAGE : top * PAGE]
    write(path, data)


def releases_without_end(path: Path) -> None:
    """All entries are there once, first; then only the last one, a release, which no search for others ends at."""
    root, data = root_of(path), bytearray(path.read_bytes())
    page = bytes(data[(root - 1) * PAGE : root * PAGE])
    (last,) = struct.unpack(">H", page[12:14])
    data += page
    all_once = len(data) // PAGE
    data += struct.pack(">BHHHBH", 13, 0, 1, last, 0, last).ljust(last, b"\0") + page[last:]
    top = without_end(data, len(data) // PAGE)
    data[(root - 1) * PAGE : root * PAGE] = interior([all_once, top])
    write(path, data)


def schema_without_end(path: Path) -> None:
    """So does a row of the schema, of an index that SQLite makes by itself; the others are there once, first."""
    data = bytearray(path.read_bytes())
    first = bytes(data[:PAGE])
    (count,) = struct.unpack(">H", first[103:105])
    places = struct.unpack(f">{count}H", first[108 : 108 + 2 * count])
    (own,) = [at for at in places if b"sqlite_autoindex_keys_1" in first[at : at + 60]]
    rest = first[108 + 2 * count :]
    data += first[100:108] + first[108 : 108 + 2 * count] + bytes(100) + rest
    all_once = len(data) // PAGE
    data += struct.pack(">BHHHBH", 13, 0, 1, own, 0, own).ljust(own, b"\0") + first[own:]
    top = without_end(data, len(data) // PAGE)
    data[100:PAGE] = interior([all_once, top], 100)[100:]
    write(path, data)


def rows_without_measure(path: Path) -> None:
    """A hundred rows that claim 40 MB each: they share one overflow page, which follows itself."""
    body = 2_200_000
    claim = body + 9_000 * (PAGE - 4)
    change(
        path,
        "INSERT INTO entries SELECT 4, 'note', run, 0, 0, query_digest, "
        f"replace(hex(zeroblob({body // 2})), '0', 'r'), payload_digest, payload, mac FROM entries "
        "WHERE sequence = 3",
    )
    root, data = root_of(path), bytearray(path.read_bytes())
    page = bytes(data[(root - 1) * PAGE : root * PAGE])
    at = min(struct.unpack(">4H", page[8:16]))  # the newest cell is the lowest
    size = 0
    for byte in page[at : at + 4]:
        size = size << 7 | byte & 127
    kept = 489 + (size - 489) % (PAGE - 4)
    ends = at + 5 + (kept if kept <= PAGE - 35 else 489)
    local = page[at + 5 : ends].replace(varint(13 + 2 * body), varint(13 + 2 * claim), 1)
    after = page[ends : ends + 4]
    (overflow,) = struct.unpack(">I", after)
    data[(overflow - 1) * PAGE : overflow * PAGE] = after + b"r" * (PAGE - 4)
    del data[overflow * PAGE :]
    leaves = [len(data) // PAGE + 1]
    data += page
    cells = [varint(size + claim - body) + bytes([number]) + local + after for number in range(5, 105)]
    each = (PAGE - 8) // (len(cells[0]) + 2)
    for start in range(0, len(cells), each):
        data += leaf(cells[start : start + each])
        leaves.append(len(data) // PAGE)
    data[(root - 1) * PAGE : root * PAGE] = interior(leaves)
    write(path, data, claim // PAGE + 1000)


FILES: dict[str, Callable[[Path], None]] = {
    "entries": rows_without_end,
    "releases": releases_without_end,
    "schema": schema_without_end,
    "keys": lambda path: rows_without_end(path, "keys"),
    "rows": rows_without_measure,
}


def opening(paths: tuple[Path, Path]) -> list[str]:
    try:
        SqliteLedger("ash", *paths).close()
        return []
    except SiloError as error:
        assert error.code in ("ledger", "ledger-damaged", "ledger-lost")
        return [error.sentence]


def reconciling(paths: tuple[Path, Path]) -> list[str]:
    try:
        ledger = SqliteLedger("ash", *paths, fitting=False)
        ledger.reconcile()
        return []
    except SiloError as error:
        return [error.sentence]


USES: dict[str, Callable[[tuple[Path, Path]], list[str]]] = {
    "open": opening,
    "reconcile": reconciling,
    "verify": lambda paths: faults("ash", *paths),
}


def megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def in_a_child(act: Callable[[], list[str]]) -> tuple[list[str], int]:
    """The messages of `act` in a child process, and the megabytes by which that grew; it ends within a minute."""
    read, written = os.pipe()
    child = os.fork()
    if child == 0:
        code = 3
        try:
            used, before = int(Path("/proc/self/statm").read_text().split()[0]) * PAGE, megabytes()
            resource.setrlimit(resource.RLIMIT_AS, (used + 1500 * 2**20,) * 2)  # so that no machine suffers
            messages = act()
            os.write(written, json.dumps([messages, megabytes() - before]).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(written)
    until, status = time.monotonic() + PATIENCE, None
    while status is None and time.monotonic() < until:
        ended, found = os.waitpid(child, os.WNOHANG)
        status = found if ended else None
        time.sleep(0.01)
    if status is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with open(read, "rb") as pipe:
        data = pipe.read()
    assert status is not None, f"it had not ended after {PATIENCE:g} s"
    assert os.waitstatus_to_exitcode(status) == 0
    messages, grown = json.loads(data)
    return messages, grown


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is measured as Linux counts it")
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", FILES)
def test_a_small_file_is_looked_at_to_an_end(tmp_path, name, use):
    paths = tmp_path / "version" / "ash.sqlite", tmp_path / "ash.anchor"
    ledger = SqliteLedger("ash", *paths)
    ledger.open_run("run", "plan", b"k" * 32, Charge(0.25, 1.0, 1e-6), None)
    ledger.commit("run", row(1))
    ledger.close()
    kept = [paths[1].with_suffix(suffix).read_bytes() for suffix in (".key", ".anchor")]
    FILES[name](paths[0])
    assert paths[0].stat().st_blocks * 512 < 2**20
    messages, grown = in_a_child(lambda: USES[use](paths))
    # Keys are looked up one by one, and none of them as a ledger is opened.
    assert messages or (name, use) == ("keys", "open")
    assert all("ledger" in sentence or "entry" in sentence for sentence in messages), messages
    assert grown < MOST_MB, f"it grew by {grown} MB"
    assert [paths[1].with_suffix(suffix).read_bytes() for suffix in (".key", ".anchor")] == kept
