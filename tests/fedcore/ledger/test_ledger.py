"""Ledgers: one set of tests for both forms, then the guarantees of the durable form."""

import math
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Cap, Charge
from fedcore.errors import SiloError
from fedcore.ledger.ledger import Row, payload_digest
from fedcore.ledger.memory import MemoryLedger
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.messages import Receipt

CHARGE = Charge(mu_squared=0.25, epsilon=1.0, delta=1e-6)


def durable(folder, name="a"):
    return SqliteLedger("ash", folder / f"{name}.sqlite", folder / f"{name}.anchor")


def row(round, value=1.0, phase=1):
    payload, digested = payload_digest(np.array([value, -value]))
    return Row(phase, round, (b"query %d" % round).ljust(32), GaussianRelease(3, 9, 0.25, 0.1 + 0.2), digested, payload)


def with_bytes(ledger, run="run"):
    """The rows of a run as they would be sent again; a durable ledger reads their bytes when they are found."""
    return [ledger.find(run, kept.phase, kept.round) for kept in ledger.rows(run)]


@pytest.fixture(params=["memory", "sqlite"])
def ledger(request, tmp_path):
    made = MemoryLedger("ash") if request.param == "memory" else durable(tmp_path / "deep", "ash")
    yield made
    made.close()


def test_rows_come_back_in_order_and_by_address(ledger):
    ledger.open_run("run", "plan", b"key", CHARGE, None)
    for number in (1, 2, 3):
        ledger.commit("run", row(number))
    assert [found.round for found in ledger.rows("run")] == [1, 2, 3]
    assert [found[:5] for found in ledger.rows("run")] == [row(number)[:5] for number in (1, 2, 3)]
    assert ledger.find("run", 1, 3) == row(3)  # the newest with its bytes
    assert ledger.find("run", 1, 4) is None and ledger.find("run", 2, 1) is None


def test_an_address_is_committed_once(ledger):
    ledger.open_run("run", "plan", b"key", CHARGE, None)
    ledger.commit("run", row(1))
    for again in (row(1, 2.0), row(1)):
        with pytest.raises(SiloError) as caught:
            ledger.commit("run", again)
        assert caught.value.code == "committed"
    ledger.commit("run", row(2))
    with pytest.raises(SiloError):
        ledger.commit("run", row(1, 2.0))  # also when its bytes are no longer held
    assert [found[:5] for found in ledger.rows("run")] == [row(1)[:5], row(2)[:5]]


def test_a_run_keeps_its_key_and_its_plan(ledger):
    assert ledger.open_run("run", "plan", b"key", CHARGE, None) == b"key"
    assert ledger.open_run("run", "plan", b"another", CHARGE, None) == b"key"
    assert ledger.open_run("other", "plan", b"another", CHARGE, None) == b"another"
    with pytest.raises(SiloError) as caught:
        ledger.open_run("run", "changed plan", b"key", CHARGE, None)
    assert caught.value.code == "plan"
    assert ledger.open_run("run", "plan", b"key", CHARGE, None) == b"key"


def test_runs_are_kept_apart(ledger):
    for run in ("a", "b"):
        ledger.open_run(run, "plan", b"key", CHARGE, None)
    ledger.commit("a", row(1))
    ledger.commit("b", row(1, 5.0))
    assert len(ledger.rows("a")) == len(ledger.rows("b")) == 1
    assert ledger.find("b", 1, 1).payload == row(1, 5.0).payload
    assert ledger.find("a", 1, 1).payload_digest == row(1).payload_digest
    assert ledger.rows("unknown") == []


def test_memory_holds_the_bytes_of_one_release_and_takes_receipts():
    ledger = MemoryLedger("ash")
    ledger.open_run("run", "plan", b"key", CHARGE, None)
    receipt = Receipt("ash", 1, 1, row(1).query_digest, row(1).payload_digest)
    ledger.restore("run", [(receipt, row(1).event)])
    assert ledger.find("run", 1, 1) == row(1)._replace(payload=None)
    ledger.commit("run", row(1))  # computed again, the same bytes: this is the committed answer
    ledger.commit("run", row(2))
    assert [found.payload is None for found in ledger.rows("run")] == [True, False]
    with pytest.raises(SiloError):
        ledger.commit("run", row(1, 2.0))


def test_durable_ledger_ignores_receipts(tmp_path):
    ledger = durable(tmp_path, "a")
    ledger.open_run("run", "plan", b"key", CHARGE, None)
    ledger.restore("run", [(Receipt("ash", 1, 1, row(1).query_digest, bytes(32)), row(1).event)])
    assert ledger.rows("run") == []
    ledger.close()


def test_what_was_committed_outlives_a_kill(tmp_path):
    """The process dies by SIGKILL right after commit, without closing anything."""
    code = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from pathlib import Path
from tests.fedcore.ledger.test_ledger import CHARGE, durable, row
ledger = durable(Path({str(tmp_path)!r}))
ledger.open_run("run", "plan", b"key", CHARGE, None)
for number in (1, 2):
    ledger.commit("run", row(number))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    ledger = durable(tmp_path, "a")
    assert with_bytes(ledger) == [row(1), row(2)]
    assert ledger.open_run("run", "plan", b"another", CHARGE, None) == b"key"
    ledger.close()


@pytest.mark.parametrize("used", [False, True])
def test_one_holder_at_a_time(tmp_path, impatient, used):
    if used:
        first = durable(tmp_path)
        first.open_run("run", "plan", b"key", CHARGE, None)
        first.close()
    holder = durable(tmp_path)
    with pytest.raises(SiloError) as caught:
        durable(tmp_path)
    assert caught.value.code == "ledger" and "is held by another process" in str(caught.value)
    holder.close()
    durable(tmp_path).close()


def test_a_place_that_cannot_hold_a_ledger_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SiloError) as caught:
        durable(tmp_path / "file", "a")
    assert caught.value.code == "ledger" and caught.value.silo == "ash"
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(b"not a database, by far" * 100)
    with pytest.raises(SiloError):
        durable(tmp_path, "damaged")


def test_a_full_disk_writes_and_sends_nothing(tmp_path):
    ledger = durable(tmp_path, "a")
    ledger.open_run("run", "plan", b"key", CHARGE, None)
    ledger.commit("run", row(1))
    (pages,) = ledger._connection.execute("PRAGMA page_count").fetchone()
    ledger._connection.execute(f"PRAGMA max_page_count = {pages}")  # what SQLite reports as a full disk
    big = row(2)._replace(payload=bytes(100_000))
    with pytest.raises(SiloError) as caught:
        ledger.commit("run", big)
    assert caught.value.code == "ledger"
    assert with_bytes(ledger) == [row(1)]
    ledger.commit("run", row(2))
    assert with_bytes(ledger) == [row(1), row(2)]
    ledger.close()


def test_the_cap_admits_runs_up_to_it_and_keeps_nothing_of_others(ledger):
    cap = Cap(2.0, 1e-5, "basic")
    ledger.open_run("first", "plan", b"key", CHARGE, cap)
    ledger.open_run("second", "plan", b"key", CHARGE, cap)
    message = r"cap of epsilon 2 .*basic.* has 0 left .runs so far: 2.; run third asks for 1"
    with pytest.raises(SiloError, match=message):
        ledger.open_run("third", "plan", b"key", CHARGE, cap)
    # A run that was admitted is not charged again, whatever the cap is now.
    assert ledger.open_run("second", "plan", b"key", CHARGE, Cap(0.1, 1e-9)) == b"key"
    assert ledger.open_run("third", "plan", b"new", CHARGE, Cap(3.0, 1e-5, "basic")) == b"new"


def test_charges_outlive_the_process(tmp_path):
    first = durable(tmp_path, "a")
    first.open_run("run", "plan", b"key", CHARGE, None)
    first.close()
    again = durable(tmp_path, "a")
    with pytest.raises(SiloError, match="runs so far: 1"):
        again.open_run("other", "plan", b"key", CHARGE, Cap(1.5, 1e-5, "basic"))
    again.open_run("no noise", "plan", b"key", Charge(math.inf, math.inf, 1e-6), None)
    with pytest.raises(SiloError, match="cap"):
        again.open_run("after it", "plan", b"key", CHARGE, Cap(1e6, 1e-5))
    again.close()


def test_a_ledger_of_another_version_is_refused(tmp_path):
    db = sqlite3.connect(tmp_path / "a.sqlite")
    db.execute("CREATE TABLE runs (run TEXT PRIMARY KEY, plan TEXT NOT NULL, key BLOB NOT NULL)")
    db.close()
    with pytest.raises(SiloError, match="has version 0, this code needs 4"):
        durable(tmp_path, "a")
