"""The scanner finds a canary in every form that it claims to know, and none where there is none."""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import json
import lzma
import pickle
import sqlite3
import subprocess
import sys
import zipfile
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.locality.canaries import BOUND, DIVIDE_BY, canary_rows, needles, prepared
from tests.locality.scanner import Scanner

OWNERS, ROWS, FEATURES = ("ash", "birch"), 4, 5
ROWS_OF = {owner: canary_rows(np.random.default_rng(i), ROWS, FEATURES) for i, owner in enumerate(OWNERS)}
VALUES = {owner: np.concatenate([rows.ravel(), prepared(rows).ravel()]) for owner, rows in ROWS_OF.items()}
SCANNER = Scanner(needle for owner, values in VALUES.items() for needle in needles(owner, values))
ONE = float(ROWS_OF["ash"][1, 2])
ROW = ROWS_OF["ash"][1]
NOISE = np.random.default_rng(9).bytes(100_003)


def parquet(rows: np.ndarray, compression: str) -> bytes:
    sink = io.BytesIO()
    table = pa.table({f"x{j}": np.append(np.zeros(1000), column) for j, column in enumerate(rows.T)})
    pa.parquet.write_table(table, sink, compression=compression)
    return sink.getvalue()


def zipped(data: bytes) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inner", data)
    return sink.getvalue()


def arrow(data: bytes, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def base64_in_stream(raw: bytes, before: int) -> bytes:
    return base64.b64encode(bytes(range(before)) + raw + b"end")


SINGLES = {  # one value alone
    "float64": np.float64(ONE).tobytes(),
    "float64, big-endian": np.array(ONE, ">f8").tobytes(),
    "repr": repr(ONE).encode(),
    "%.17g": b"%.17g" % ONE,
    "%.9g": b"%.9g" % ONE,
    "%.12f": b"%.12f" % ONE,
    "%.18e": b"%.18e" % ONE,
    "json": json.dumps({"v": ONE}).encode(),
    "float32, as text": repr(float(np.float32(ONE))).encode(),
    "hex": np.float64(ONE).tobytes().hex().encode(),
    "float.hex": ONE.hex().encode(),
    "bytes as text": repr(np.float64(ONE).tobytes()).encode(),
    "base64, 0 bytes in": base64_in_stream(np.float64(ONE).tobytes(), 0),
    "base64, 1 byte in": base64_in_stream(np.float64(ONE).tobytes(), 1),
    "base64, 2 bytes in": base64_in_stream(np.float64(ONE).tobytes(), 2),
    "base64 for URLs": base64.urlsafe_b64encode(np.float64(ONE).tobytes()),
    "pickled": pickle.dumps(ONE),
    "pickled as text": pickle.dumps(ONE, protocol=0),
    "prepared": np.float64(prepared(ROW[None])[0, 2]).tobytes(),
    "prepared, as text": repr(float(prepared(ROW[None])[0, 5])).encode(),
}
TOGETHER = {  # a record
    "float32": ROW.astype("<f4").tobytes(),
    "float32, big-endian": ROW.astype(">f4").tobytes(),
    "a column of float32": ROWS_OF["ash"][:, 0].astype("<f4").tobytes(),
    "%.6g": b" ".join(b"%.6g" % v for v in ROW),
    "%.8g": b" ".join(b"%.8g" % v for v in ROW),
    "%e": b" ".join(b"%e" % v for v in ROW),
    "%.6f": b", ".join(b"%.6f" % v for v in ROW),
    "str of an array": str(ROW).encode(),
    "str of float32": str(ROW.astype("f4")).encode(),
    "pickled array": pickle.dumps(ROWS_OF["ash"]),
    "zlib": zlib.compress(ROW.tobytes() * 3),
    "gzip": gzip.compress(repr(ROW.tolist()).encode()),
    "bz2": bz2.compress(ROW.tobytes()),
    "xz": lzma.compress(ROW.tobytes()),
    "zstd": arrow(ROW.tobytes(), "zstd"),
    "lz4 frame": arrow(ROW.tobytes(), "lz4"),
    "zip": zipped(ROW.tobytes()),
    "gzip in zip": zipped(gzip.compress(ROW.tobytes())),
    "base64 of zlib": base64.b64encode(zlib.compress(ROW.tobytes())),
    "hex of float32": ROW.astype("<f4").tobytes().hex().encode(),
    "base64 of float32": base64.b64encode(bytes(7) + ROW.astype("<f4").tobytes()),
}
ALONE = {  # a file from its first byte
    f"parquet, {codec}": parquet(ROWS_OF["ash"], codec) for codec in ("none", "snappy", "gzip", "zstd", "lz4", "brotli")
}


@pytest.mark.parametrize("form", [*SINGLES, *TOGETHER])
@pytest.mark.parametrize("before", [0, 77, 4096 + 3])
def test_a_planted_canary_is_found_in_every_form_and_place(form, before):
    planted = (SINGLES | TOGETHER)[form]
    # Text separates numbers by spaces; random neighbours might be further digits.
    data = NOISE[:before] + b" " + planted + b" " + NOISE[before:]
    if form == "zip":
        data = NOISE[:before] + planted
    if form == "gzip in zip":
        data = NOISE[:before] + planted
    assert SCANNER.data(data).owners() == {"ash"}


@pytest.mark.parametrize("form", ALONE)
def test_a_canary_is_found_in_a_parquet_file_of_any_codec(form):
    assert SCANNER.data(ALONE[form]).owners() == {"ash"}


def test_one_weak_form_alone_is_no_find():
    assert not SCANNER.data(NOISE + ROW[:1].astype("<f4").tobytes() + NOISE).owners()
    assert not SCANNER.data(b"%.6g and %.7g" % (ROW[0], ROW[0])).owners()


@pytest.mark.parametrize("part", [8, pytest.param(1, marks=pytest.mark.minutes)])
def test_there_is_no_alarm_on_random_bytes_numbers_and_text(part):
    """256 MB, and an eighth of it, of typical memory and logs: the false alarm rate that the page states."""
    rng = np.random.default_rng(2)
    finds = SCANNER.data(rng.bytes((1 << 27) // part), encoded=False)
    finds.add(SCANNER.data(rng.uniform(-1, 1, (1 << 23) // part).tobytes(), encoded=False))
    finds.add(SCANNER.data(rng.uniform(-1, 1, (1 << 23) // part).astype("<f4").tobytes(), encoded=False))
    finds.add(SCANNER.data(" ".join(map(repr, rng.uniform(-1, 1, 100_000).tolist())).encode()))
    finds.add(SCANNER.data(" ".join(f"{v:.6g}" for v in rng.uniform(-1, 1, 100_000)).encode()))
    finds.add(SCANNER.data(base64.b64encode(rng.bytes(1 << 20)) + b"\n" + rng.bytes(1 << 20).hex().encode()))
    assert finds.scanned > 250e6 / part and not finds.owners(), dict(finds.by_owner)


def test_a_database_is_searched_with_its_write_ahead_file_and_long_cells(tmp_path):
    path = tmp_path / "some.db"
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("CREATE TABLE t (a, b)")
    database.execute("INSERT INTO t VALUES (?, ?)", ("x" * 9000, 1.0))
    database.commit()
    assert not SCANNER.file(path).owners()
    noise = np.random.default_rng(5).bytes(9000)
    database.execute("INSERT INTO t VALUES (?, ?)", (zlib.compress(noise + ROW.tobytes()), 1.0))
    database.commit()
    assert SCANNER.file(path).owners() == {"ash"}
    database.execute("DELETE FROM t")
    database.execute("INSERT INTO t VALUES (?, ?)", ("x", float(ROWS_OF["birch"][0, 0])))
    database.commit()
    assert "birch" in SCANNER.file(path).owners()
    database.close()


def test_the_memory_of_another_process_is_searched(tmp_path):
    """The child makes the value from two halves, so that no command line and no file holds it."""
    bits = int(np.float64(ONE).view(np.uint64)) ^ 0x5555_5555_5555_5555
    code = f"import struct, sys; kept = struct.pack('<Q', {bits} ^ 0x5555555555555555); print(flush=True); input()"
    for words, owners in ((code, {"ash"}), ("print(flush=True); input()", set())):
        child = subprocess.Popen([sys.executable, "-c", words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            child.stdout.readline()
            finds = SCANNER.memory(child.pid, tmp_path)
            assert finds.owners() == owners and finds.scanned > 1e6
        finally:
            child.kill()
            child.communicate()


def test_prepared_records_follow_the_stated_rule():
    """The privacy statement: divide by a public constant, append 1, scale to norm at most `feature_bound`."""
    for rows in ROWS_OF.values():
        longer = np.column_stack([rows / DIVIDE_BY, np.ones(len(rows))])
        scaled = longer * (BOUND / np.linalg.norm(longer, axis=1))[:, None]
        np.testing.assert_allclose(prepared(rows), scaled, rtol=1e-12)
