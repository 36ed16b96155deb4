"""The checkpoint: what is saved comes back bit for bit, and what does not belong to the run is refused."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest

from fedcore.errors import BusyError, InputError
from fedcore.messages import Query, Receipt
from fedcore.optim.sgd import SgdState
from tasks.result_file import write_atomically
from tasks.run_file import read_done, read_meta, read_progress
from tasks.run_store import MetricRow, RunStore

W = np.array([0.1, -1e-300, np.pi])
STATE = SgdState(phase=2, round=3, w=W, centre=W * 2, mean=W / 3)
QUERY = Query("run", "plan", 2, 3, ("b", "a"), {"w": W})
RECEIPTS = [Receipt("a", 2, 2, b"q" * 32, b"p" * 32), Receipt("b", 2, 2, b"q" * 32, b"r" * 32)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "checkpoint.sqlite"


@pytest.mark.parametrize("wait", [True, False])
def test_what_is_saved_comes_back(path, wait):
    store = RunStore(path, wait=wait)
    assert store.load(SgdState) is None
    store.save(STATE, QUERY, MetricRow(2, 2, {"test/error": 0.5}), RECEIPTS, (1, W))
    store.close()

    store = RunStore(path)
    state, query = store.load(SgdState)
    assert (state.phase, state.round) == (2, 3)
    for name in ("w", "centre", "mean"):
        np.testing.assert_array_equal(getattr(state, name), getattr(STATE, name))
    assert query.participants == ("b", "a")
    assert query.digests(["a"])["a"] == QUERY.digests(["a"])["a"]
    assert query.arrays["w"].tobytes() == W.tobytes()
    assert list(store.receipts()) == RECEIPTS
    assert list(store.metric_rows()) == [MetricRow(2, 2, {"test/error": 0.5})]
    np.testing.assert_array_equal(store.models()[1], W)
    store.close()
    assert read_progress(path) == (2, 3)
    assert read_done(path) == 1


def test_a_round_saved_twice_is_there_once(path):
    store = RunStore(path)
    for _ in range(2):
        store.save(STATE, QUERY, MetricRow(2, 2, {"test/error": 0.5}), RECEIPTS)
    assert len(list(store.metric_rows())) == 1
    assert len(list(store.receipts())) == 2
    store.close()


def test_a_damaged_checkpoint_is_told(path):
    store = RunStore(path)
    store.save(STATE, QUERY)
    store.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE progress SET state = substr(state, 1, 40)")
    store = RunStore(path)
    with pytest.raises(InputError, match="is damaged and cannot be resumed"):
        store.load(SgdState)
    store.close()
    path.write_bytes(b"not a database" * 100)
    path.with_name(path.name + "-wal").unlink(missing_ok=True)
    with pytest.raises(InputError, match="the checkpoint cannot be read or written"):
        RunStore(path)
    assert read_meta(path) == {}


def test_a_full_disk_names_the_folder(path):
    store = RunStore(path)
    store.save(STATE, QUERY)
    # SQLite itself reports a full disk once the file may not grow.
    store._call(lambda: store._db.execute("PRAGMA max_page_count = 1"))
    big = [Receipt(f"silo-{i}", 2, 2, b"q" * 32, b"p" * 32) for i in range(5000)]
    with pytest.raises(InputError, match=r"the checkpoint cannot be read or written .*full"):
        store.save(SgdState(2, 4, W, W, W), QUERY, None, big)
    # Nothing of the failed transaction is there.
    assert list(store.receipts()) == []
    assert store.load(SgdState)[0].round == 3
    store.close()


def test_a_file_is_replaced_or_left(tmp_path):
    target = tmp_path / "result.json"
    write_atomically(target, b"one")
    write_atomically(target, b"two")
    assert target.read_bytes() == b"two"
    with pytest.raises(InputError, match="cannot be written"):
        write_atomically(tmp_path / "no-folder" / "x", b"three")
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize("wait", [True, False])
def test_a_driver_that_was_taken_over_writes_no_files_of_the_result(path, wait):
    """The older driver was paused between the last answer and the files; the newer one has written the result."""
    file = path.with_name("result.json")
    older = RunStore(path, wait=wait)
    older.take_lease()
    newer = RunStore(path)
    newer.take_lease()
    newer.set_meta(lambda: write_atomically(file, b"newer"), state="FINISHED")
    with pytest.raises(BusyError, match="taken over by process"):
        older.set_meta(lambda: write_atomically(file, b"older"), state="FINISHED")
    assert file.read_bytes() == b"newer"
    newer.close()
    older.close()


def test_nobody_takes_a_run_over_while_files_of_its_result_are_written(path):
    store = RunStore(path)
    store.take_lease()

    def write() -> None:
        other = sqlite3.connect(path, timeout=0)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        other.close()

    store.set_meta(write, state="FINISHED")
    store.close()
