"""Durable ledgers that were tampered with, cut, restored or lost: each is found, beside a control that is whole."""

import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Cap, Charge
from fedcore.errors import SiloError
from fedcore.home import LedgerFolders
from fedcore.ledger.ledger import Row, payload_digest
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.ledger.storage.verify import faults
from tests.faulty_disk import FaultyDisk

PROJECT = Path(__file__).resolve().parents[3]
CHARGE = Charge(mu_squared=0.25, epsilon=1.0, delta=1e-6)
EVENT = GaussianRelease(0, 10, 0.2, 0.8)


def row(round, value=1.0):
    payload, digested = payload_digest(np.full(5, value * round))
    return Row(1, round, (b"query %03d" % round).ljust(32), EVENT, digested, payload)


def opened(folder, **options) -> SqliteLedger:
    return SqliteLedger("ash", folder / "a.sqlite", folder / "anchors" / "a.anchor", **options)


def found(folder) -> list[str]:
    return faults("ash", folder / "a.sqlite", folder / "anchors" / "a.anchor")


def fill(folder, first=1, last=9, run="run") -> None:
    ledger = opened(folder)
    ledger.open_run(run, "plan", b"k" * 32, CHARGE, None)
    for number in range(first, last + 1):
        ledger.commit(run, row(number))
    ledger.close()


@pytest.fixture
def whole(tmp_path) -> Path:
    fill(tmp_path)
    assert found(tmp_path) == []
    return tmp_path


def change(folder, statement, *values) -> None:
    db = sqlite3.connect(folder / "a.sqlite")
    db.execute(statement, values)
    db.commit()
    db.close()


TAMPERED = {
    "sigma": ("UPDATE entries SET body = replace(body, '0.8', '0.9') WHERE sequence = 5", "entry 5 was changed"),
    "charge": ("UPDATE entries SET body = replace(body, '0.25', '0.15') WHERE sequence = 2", "entry 2 was changed"),
    "address": ("UPDATE entries SET round = 99 WHERE sequence = 7", "entry 7 was changed"),
    "kind": ("UPDATE entries SET kind = 'closing' WHERE sequence = 7", "entry 7 was changed"),
    "type": ("UPDATE entries SET round = 'x' WHERE sequence = 7", "entry 7 was changed"),
    "mac": ("UPDATE entries SET mac = zeroblob(32) WHERE sequence = 4", "entry 4 was changed"),
    "payload": ("UPDATE entries SET payload = zeroblob(40) WHERE sequence = 6", "bytes of entry 6"),
    "payload of no release": ("UPDATE entries SET payload = zeroblob(40) WHERE sequence = 2", "entry 2 is no release"),
    "deleted": ("DELETE FROM entries WHERE sequence = 6", "entry 6 is missing"),
    "deleted last": ("DELETE FROM entries WHERE sequence = 11", "ends at entry 10, its anchor saw 11"),
    "all deleted": ("DELETE FROM entries", "ends at entry 0, its anchor saw 11"),
    "key of the run": ("UPDATE keys SET key = zeroblob(32)", "key of run run is not the one"),
    "key deleted": ("DELETE FROM keys", "key of run run is not the one"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_changed_or_deleted_row_is_found(whole, name):
    statement, sentence = TAMPERED[name]
    change(whole, statement)
    assert any(sentence in message for message in found(whole)), found(whole)


def test_reordered_rows_are_found(whole):
    columns = "kind, run, phase, round, query_digest, body, payload_digest, payload, mac"
    db = sqlite3.connect(whole / "a.sqlite")
    fifth, sixth = (db.execute(f"SELECT {columns} FROM entries WHERE sequence = ?", (n,)).fetchone() for n in (5, 6))
    db.execute("DELETE FROM entries WHERE sequence IN (5, 6)")
    for number, fields in ((5, sixth), (6, fifth)):
        db.execute(f"INSERT INTO entries (sequence, {columns}) VALUES (?{', ?' * 9})", (number, *fields))
    db.commit()
    db.close()
    assert found(whole) == ["entry 5 was changed, or is not where it was written"]


def test_whoever_can_write_the_file_but_has_no_key_cannot_add_a_row(whole):
    change(
        whole,
        "INSERT INTO entries SELECT 12, kind, run, phase, 77, query_digest, body, payload_digest, payload, mac "
        "FROM entries WHERE sequence = 11",
    )
    assert found(whole) == ["entry 12 was changed, or is not where it was written"]
    with pytest.raises(SiloError, match="entry 12"):
        opened(whole)


def content(folder) -> list:
    db = sqlite3.connect(folder / "a.sqlite")
    try:
        return [db.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() for table in ("entries", "keys")]
    finally:
        db.close()


def test_every_flipped_bit_is_found_or_changes_no_row(whole, tmp_path):
    """Some bits of a file have no meaning: free space, SQLite's counters. Flips of all others must be reported."""
    data, truth = (whole / "a.sqlite").read_bytes(), content(whole)
    rng = np.random.default_rng(5)
    reported = silent = 0
    for place in rng.choice(len(data) * 8, size=400, replace=False):
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << (place % 8)
        (whole / "a.sqlite").write_bytes(damaged)
        for extra in ("-wal", "-shm"):
            (whole / f"a.sqlite{extra}").unlink(missing_ok=True)
        if found(whole):
            reported += 1
        else:
            silent += 1
            assert content(whole) == truth, place
    (whole / "a.sqlite").write_bytes(data)
    assert found(whole) == [] and reported > 20 and silent > 0


@pytest.mark.parametrize("part", [0.0, 0.3, 0.6, 0.9])
def test_a_truncated_file_is_found(whole, part):
    size = (whole / "a.sqlite").stat().st_size
    os.truncate(whole / "a.sqlite", int(size * part))
    assert found(whole) != []
    with ExitStack() as held, pytest.raises(SiloError):  # at the latest where something that is gone is needed
        ledger = held.enter_context(closing(opened(whole)))
        ledger.open_run("run", "plan", b"k" * 32, CHARGE, None)
        assert [ledger.find("run", 1, kept.round) for kept in ledger.rows("run")] == [row(n) for n in range(1, 10)]
        ledger.commit("run", row(10))


def test_a_ledger_that_is_gone_is_not_begun_anew(whole):
    (whole / "a.sqlite").unlink()
    assert "is gone" in found(whole)[0]
    with pytest.raises(SiloError) as caught:
        opened(whole)
    assert caught.value.code == "ledger-lost"


def killed_holder(folder, rounds: int) -> None:
    """A process that commits and dies by SIGKILL, so that the newest rows are in the write-ahead file only."""
    code = (
        f"import os, signal, sys; sys.path.insert(0, {str(PROJECT)!r})\n"
        "from pathlib import Path\nfrom tests.fedcore.ledger.test_ledger_check import CHARGE, opened, row\n"
        f"ledger = opened(Path({str(folder)!r}))\nledger.open_run('run', 'plan', b'k' * 32, CHARGE, None)\n"
        f"for number in range(1, {rounds + 1}): ledger.commit('run', row(number))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_a_missing_write_ahead_file_is_found(tmp_path):
    for name, removed in (("control", False), ("lost", True)):
        folder = tmp_path / name
        folder.mkdir()
        killed_holder(folder, 3)
        assert (folder / "a.sqlite-wal").stat().st_size > 0
        if removed:
            (folder / "a.sqlite-wal").unlink()
            (folder / "a.sqlite-shm").unlink(missing_ok=True)
        faults = found(folder)
        assert bool(faults) == removed, faults


def test_a_restored_copy_is_found_and_reconciled(whole, tmp_path):
    shutil.copy(whole / "a.sqlite", whole / "backup")
    ledger = opened(whole)
    for number in (10, 11):
        ledger.commit("run", row(number))
    later = Charge(mu_squared=1.5, epsilon=3.0, delta=1e-6)
    ledger.open_run("second", "plan", b"s" * 32, later, None)
    ledger.close()
    assert found(whole) == []  # the control: same files, nothing restored
    for extra in ("-wal", "-shm"):
        (whole / f"a.sqlite{extra}").unlink(missing_ok=True)
    shutil.copy(whole / "backup", whole / "a.sqlite")
    assert found(whole) == ["its ledger ends at entry 11, its anchor saw 14: it lost its end or is an old copy"]
    with pytest.raises(SiloError, match="nothing is answered until `fedcore budget reconcile ash`") as caught:
        opened(whole)
    assert caught.value.code == "ledger-lost"

    ledger = opened(whole, fitting=False)
    closed, lost = ledger.reconcile()
    ledger.close()
    # By hand: the open run in full (as it was charged), and the second run, which the copy does not know.
    assert closed == ["run"] and lost == Charge(1.5, 3.0, 1e-6)
    assert found(whole) == []
    ledger = opened(whole)
    assert math.fsum(charge.mu_squared for charge in ledger.charges().values()) == 1.75
    with pytest.raises(SiloError) as caught:
        ledger.commit("run", row(10, 2.0))  # another answer where one is lost that had been sent
    assert caught.value.code == "closed"
    ledger.open_run("third", "plan", b"t" * 32, CHARGE, Cap(10.0, 1e-5))
    ledger.close()
    assert found(whole) == []


@pytest.mark.parametrize("damage", [lambda p: p.unlink(), lambda p: p.write_bytes(bytes(1024))])
def test_a_lost_anchor_is_told_and_reconciled(whole, damage):
    damage(whole / "anchors" / "a.anchor")
    assert found(whole) == ["its ledger's anchor is gone or damaged"]
    with pytest.raises(SiloError):
        opened(whole)
    ledger = opened(whole, fitting=False)
    assert ledger.reconcile() == (["run"], Charge(0.0, 0.0, 0.0))
    ledger.close()
    assert found(whole) == []


def test_a_lost_key_cannot_be_made_up(whole):
    (whole / "anchors" / "a.key").unlink()
    assert len(found(whole)) == 1 and "a.key is gone" in found(whole)[0]
    for fitting in (True, False):
        with pytest.raises(SiloError, match=r"a\.key is gone") as caught:
            opened(whole, fitting=fitting)
        assert caught.value.code == "ledger-damaged"


def test_a_key_that_is_all_there_is_left_is_listed_and_told(tmp_path):
    """Otherwise `budget verify` would not report a silo whose ledger and anchor were deleted."""
    folders = LedgerFolders.below(tmp_path)
    places = folders.of("version", "ash")
    SqliteLedger("ash", *places).close()
    for path in places:
        path.unlink()
    assert folders.found() == folders.found("ash") == [("version", "ash")]
    assert faults("ash", *places) == [f"its ledger {places[0]} is gone"]


def test_a_torn_anchor_still_has_the_mark_before(whole):
    """The two slots are written in turn; a ledger that is ahead of its anchor is whole."""
    path = whole / "anchors" / "a.anchor"
    data = bytearray(path.read_bytes())
    data[512 * (11 % 2) + 20] ^= 1
    path.write_bytes(data)
    assert found(whole) == []
    fill(whole, 10, 10)
    assert found(whole) == []


def test_two_copies_that_were_written_to_are_found(tmp_path):
    # In folders of one name, which is the version of the data: a ledger belongs to it.
    one, two = tmp_path / "one" / "version", tmp_path / "two" / "version"
    one.mkdir(parents=True)
    fill(one)
    shutil.copytree(one, two)
    fill(one, 10, 10)
    ledger = opened(two)
    ledger.commit("run", row(10, 5.0))
    ledger.close()
    assert found(one) == found(two) == []  # each by itself: a clone of ledger and anchor is outside the guarantee
    shutil.copy(two / "a.sqlite", one / "a.sqlite")
    assert found(one) == ["entry 12 of its ledger is not the one that its anchor saw: another copy was written to"]


def test_a_ledger_that_somebody_holds_is_not_checked(whole, impatient):
    ledger = opened(whole)
    with pytest.raises(SiloError, match="held by another process"):
        found(whole)
    ledger.close()
    assert found(whole) == []


def test_a_closed_run_is_charged_its_releases_and_forgets_its_key(whole):
    ledger = opened(whole)
    ledger.close_run("run", 9 * (0.2 / 0.8) ** 2 / 100)
    assert ledger.charges() == {"run": Charge(9 * 0.0625 / 100, 1.0, 1e-6)}
    ledger.close_run("run", 0.0)  # only the first closing counts
    assert ledger.charges()["run"].mu_squared == 9 * 0.0625 / 100
    assert ledger.is_closed("run") and ledger.find("run", 1, 3) == row(3)
    with pytest.raises(SiloError, match="another `repetition`") as caught:
        ledger.commit("run", row(10))
    assert caught.value.code == "closed"
    assert ledger.open_run("run", "plan", b"another", CHARGE, None) == b"another"
    ledger.open_run("more", "plan", b"m" * 32, CHARGE, None)
    ledger.close_run("more", 7.0)
    assert ledger.charges()["more"] == CHARGE  # never more than the plan
    ledger.close()
    assert found(whole) == []
    left = b"".join(path.read_bytes() for path in whole.iterdir() if path.is_file())
    assert b"k" * 32 not in left and b"m" * 32 not in left


def test_what_closing_gives_back_counts_for_the_cap_but_not_under_basic(tmp_path):
    for rule, admitted in (("gdp", True), ("rdp", True), ("basic", False)):
        ledger = SqliteLedger("ash", tmp_path / rule / "a.sqlite", tmp_path / rule / "a.anchor")
        cap = Cap(1.0, 1e-5, rule)
        ledger.open_run("first", "plan", b"k" * 32, Charge(0.05, 0.99, 1e-6), cap)
        second = ("second", "plan", b"k" * 32, Charge(0.05, 0.99, 1e-6), cap)
        with pytest.raises(SiloError, match="cap"):
            ledger.open_run(*second)
        ledger.close_run("first", 1e-6)
        if admitted:
            ledger.open_run(*second)
        else:
            with pytest.raises(SiloError, match="cap"):
                ledger.open_run(*second)
        ledger.close()


def test_bytes_that_changed_on_disk_are_not_sent(whole):
    change(whole, "UPDATE entries SET payload = zeroblob(40) WHERE sequence = 6")
    ledger = opened(whole)
    ledger.open_run("run", "plan", b"k" * 32, CHARGE, None)
    with pytest.raises(SiloError, match=r"bytes of round 1\.4"):
        ledger.find("run", 1, 4)
    assert ledger.find("run", 1, 5) == row(5)
    ledger.close()


def test_a_run_whose_rows_changed_is_not_gone_on_with(whole):
    """Opening checks from the anchor on, which costs nothing; a run's own rows are checked when it comes back."""
    change(whole, "UPDATE entries SET round = 99 WHERE sequence = 7")
    ledger = opened(whole)
    with pytest.raises(SiloError, match="entry 7 was changed"):
        ledger.open_run("run", "plan", b"k" * 32, CHARGE, None)
    ledger.close()


def test_a_charge_that_was_lowered_is_found_when_the_ledger_is_opened(whole):
    change(whole, "UPDATE entries SET body = replace(body, '0.25', '0.15') WHERE sequence = 2")
    with pytest.raises(SiloError, match="charges in its ledger do not add up"):
        opened(whole)


def test_an_entry_of_a_kind_without_a_charge_is_verified_like_any_other(whole):
    ledger = opened(whole)
    ledger._write([ledger._next("note", "", '{"says": "one"}')])
    ledger.commit("run", row(10))
    assert list(ledger.charges()) == ["run"]
    ledger.close()
    ledger = opened(whole)
    assert [entry.body for entry in ledger._state.entries if entry.kind == "note"] == ['{"says": "one"}']
    ledger.open_run("run", "plan", b"k" * 32, CHARGE, None)
    assert len(ledger.rows("run")) == 10
    ledger.close()
    assert found(whole) == []
    change(whole, "UPDATE entries SET body = replace(body, 'one', 'two') WHERE kind = 'note'")
    assert found(whole) == ["entry 12 was changed, or is not where it was written"]
    with pytest.raises(SiloError, match="entry 12 was changed"):
        opened(whole)


def test_a_gap_is_refused_when_the_ledger_is_opened(whole):
    change(whole, "DELETE FROM entries WHERE sequence = 6")
    for fitting in (True, False):
        with pytest.raises(SiloError, match="entry 6 is missing") as caught:
            opened(whole, fitting=fitting)
        assert caught.value.code == "ledger-damaged"


def test_a_ledger_whose_anchor_was_lost_sends_nothing_before_it_is_reconciled(whole):
    (whole / "anchors" / "a.anchor").unlink()
    ledger = opened(whole, fitting=False)
    for use in (lambda: ledger.commit("run", row(10)), lambda: ledger.find("run", 1, 1)):
        with pytest.raises(SiloError, match="may be behind its anchor") as caught:
            use()
        assert caught.value.code == "ledger-lost"
    ledger.reconcile()
    assert ledger.find("run", 1, 1) == row(1)
    ledger.close()
    assert found(whole) == []


def test_a_commit_whose_outcome_is_unknown_is_looked_up(whole, monkeypatch):
    """The disk reports an error at COMMIT, once without and once after the write. Neither answer is sent at once."""
    for number, written in ((10, False), (11, True)):
        ledger = opened(whole)
        lost = row(number)

        def unsure(db, statement, written=written):
            """COMMIT reports an error after having done its work or not."""
            if statement == "COMMIT":
                db.execute("COMMIT" if written else "ROLLBACK")
                raise sqlite3.OperationalError("disk I/O error")

        ledger._db = FaultyDisk(ledger._connection, unsure)
        with pytest.raises(SiloError, match="nothing was sent"):
            ledger.commit("run", lost)
        assert (ledger.find("run", 1, number) is not None) == written
        if not written:
            ledger.commit("run", lost)
        assert ledger.find("run", 1, number) == lost
        ledger.close()
        assert found(whole) == []


def test_an_anchor_that_cannot_be_written_sends_nothing(whole, monkeypatch):
    ledger = opened(whole)
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        for _ in range(2):
            with pytest.raises(SiloError, match="anchor could not be written"):
                ledger.commit("run", row(10)) if ledger._at.sequence == 11 else ledger.find("run", 1, 10)
    assert ledger.find("run", 1, 10) == row(10)
    ledger.close()
    assert found(whole) == []
