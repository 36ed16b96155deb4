"""A ledger whose disk is full, read-only, or wanted by another process: sentences, nothing sent, nothing lost."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Cap, Charge
from fedcore.errors import SiloError
from fedcore.ledger import file_lock
from fedcore.ledger.anchor import GENESIS, Anchor, Totals
from fedcore.ledger.ledger import Row, payload_digest
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.ledger.storage.verify import faults
from tests.patience import HANGS

SCRIPT = Path(__file__).with_name("small_disk.py")
CODE = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
NOT_SENT = "ledger: its ledger could not be written; nothing was sent"
NOT_ANCHORED = "ledger: its anchor could not be written; nothing was sent"
CHARGE = Charge(mu_squared=0.25, epsilon=1.0, delta=1e-6)


@cache
def can_mount() -> bool:
    """True if a process here may have its own mounts, which end with it."""
    try:
        tried = subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "x", "/mnt"], capture_output=True)
        return tried.returncode == 0
    except OSError:
        return False


needs_mount = pytest.mark.skipif("not can_mount()", reason="no mounts for this user")


def on_disk(scenario: str, disk: str, folder: Path) -> dict:
    """The findings of a scenario of small_disk.py, on a separate disk."""
    place = folder / "disk"
    place.mkdir()
    command = [sys.executable, str(SCRIPT), scenario, disk, str(place)]
    if disk == "tmpfs":
        command = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=8m x "$0" && exec "$@"', str(place), *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS, env=CODE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


DISKS = ["limited", pytest.param("tmpfs", marks=[needs_mount, pytest.mark.minutes])]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> list[str]:
    return on_disk("undisturbed", "limited", tmp_path_factory.mktemp("undisturbed"))["sent"]


@pytest.mark.parametrize("disk", DISKS)
def test_a_full_disk_stops_answers_and_with_room_again_the_run_ends_with_the_same_bytes(tmp_path, undisturbed, disk):
    found = on_disk("answers", disk, tmp_path)
    assert NOT_SENT in found["refusals"]
    assert 1 < found["full_at"] < len(undisturbed)
    # A second try in the same moment may find room (closing the file moves its log's pages), or be refused alike.
    assert set(found["refusals"]) <= {
        NOT_SENT,
        "",
        f"ledger: its ledger {tmp_path}/disk/ledgers/ash.sqlite cannot be opened for writing",
    }
    assert found["rows"] == len(found["sent"])  # what was sent was committed, what was not was not
    assert found["sent"] == undisturbed[: len(found["sent"])]
    assert found["again"] == undisturbed
    assert found["faults"] == []


@pytest.mark.parametrize("disk", DISKS)
def test_a_run_is_not_approved_on_a_full_disk(tmp_path, disk):
    found = on_disk("approval", disk, tmp_path)
    assert found["refusal"] == NOT_SENT
    assert found["unapproved"].startswith("plan: it has not approved run run")
    assert (found["before"], found["later"], found["charges"]) == (0, "", 1)


@pytest.mark.parametrize("disk", DISKS)
def test_a_ledger_that_found_no_room_to_begin_begins_when_there_is_some(tmp_path, disk):
    found = on_disk("first", disk, tmp_path)["found"]
    assert "cannot be opened for writing" in found[0]["refusal"] and found[-1]["refusal"] == ""
    for each in found:
        known = each["refusal"] in ("", NOT_SENT, NOT_ANCHORED) or "cannot be opened for writing" in each["refusal"]
        assert known, each
        assert (each["later"], each["key"], each["faults"]) == ("", 32, []), each


@needs_mount
def test_a_full_disk_of_anchors_leaves_no_empty_key(tmp_path):
    """Anyone could continue a chain under an empty key, and no check would notice."""
    found = on_disk("anchors", "tmpfs", tmp_path)["found"]
    assert found[0]["refusal"] == NOT_ANCHORED
    for each in found:
        assert (each["later"], each["key"], each["faults"]) == ("", 32, []), each


@pytest.mark.parametrize("disk", DISKS)
def test_a_run_that_is_closed_on_a_full_disk_is_closed_later_and_its_key_is_gone(tmp_path, disk):
    found = on_disk("closing", disk, tmp_path)["found"]
    assert NOT_SENT in {each["refusal"] for each in found}
    allowed = {NOT_SENT, "", "ledger: its ledger could not be cleared of a closed run's key"}
    for each in found:
        assert each["refusal"] in allowed
        assert (each["later"], each["charge"], each["key_left"], each["faults"]) == ("", 0.5, False, []), each


def test_a_mark_or_key_of_which_a_part_was_written_is_an_error(tmp_path):
    """At the end of a quota a write of 128 bytes may write 40, and reports no error."""
    found = on_disk("anchor", "limited", tmp_path)
    assert found["cut"] == [True, True]
    assert found["sequence"] == 2  # the mark before is whole
    assert found["key"]  # half a key is none


@pytest.mark.parametrize("left", [b"", b"k" * 31])
def test_a_key_that_was_cut_by_a_kill_is_made_anew_only_where_nothing_was_chained_with_it(tmp_path, left):
    paths = tmp_path / "ash.sqlite", tmp_path / "ash.anchor"
    paths[1].with_suffix(".key").write_bytes(left)
    SqliteLedger("ash", *paths).close()
    assert len(paths[1].with_suffix(".key").read_bytes()) == 32 and faults("ash", *paths) == []
    paths[1].with_suffix(".key").write_bytes(left)
    with pytest.raises(SiloError, match=r"ash\.key is gone"):
        SqliteLedger("ash", *paths)
    assert Anchor(paths[1]).key is None


# Read-only


def row(round: int) -> Row:
    payload, digested = payload_digest(np.array([float(round), -1.0]))
    return Row(1, round, (b"query %d" % round).ljust(32), GaussianRelease(0, 9, 0.25, 0.3), digested, payload)


def test_a_ledger_that_became_read_only_sends_nothing_and_goes_on_later(tmp_path):
    paths = tmp_path / "ash.sqlite", tmp_path / "ash.anchor"
    ledger = SqliteLedger("ash", *paths)
    ledger.open_run("run", "plan", b"k" * 32, CHARGE, None)
    ledger.commit("run", row(1))
    for write in (
        lambda: ledger.commit("run", row(2)),
        lambda: ledger.open_run("other", "plan", b"o" * 32, CHARGE, None),
        lambda: ledger.close_run("run", 0.1),
    ):
        # The very file, opened without the right to write.
        ledger._connection.close()
        ledger._db = sqlite3.connect(f"file:{paths[0]}?mode=ro", uri=True, isolation_level=None)
        assert ledger.find("run", 1, 1) == row(1)  # what was committed can be read, and sent again
        with pytest.raises(SiloError) as caught:
            write()
        assert str(caught.value) == "silo ash: its ledger could not be written; nothing was sent"
        assert [found.round for found in ledger.rows("run")] == [1] and list(ledger.charges()) == ["run"]
    ledger.commit("run", row(2))
    assert [ledger.find("run", 1, kept.round) for kept in ledger.rows("run")] == [row(1), row(2)]
    ledger.close()
    assert faults("ash", *paths) == []


@needs_mount
@pytest.mark.parametrize("anchors_only", [False, True])
def test_a_read_only_mount_is_told_before_anything_is_answered(tmp_path, anchors_only):
    for name in ("ledgers", "anchors"):
        (tmp_path / name).mkdir()
    paths = tmp_path / "ledgers" / "ash.sqlite", tmp_path / "anchors" / "ash.anchor"
    ledger = SqliteLedger("ash", *paths)
    ledger.open_run("run", "plan", b"k" * 32, CHARGE, None)
    ledger.commit("run", row(1))
    ledger.close()
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "from tests.faults.test_ledger_disk import SqliteLedger, row\n"
        "ledger = SqliteLedger('ash', Path(sys.argv[2]), Path(sys.argv[3])); ledger.commit('run', row(2))\n"
    )
    place = tmp_path / "anchors" if anchors_only else tmp_path
    mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    done = subprocess.run(
        [
            "unshare",
            "-rm",
            "sh",
            "-c",
            mount,
            str(place),
            sys.executable,
            "-c",
            code,
            str(Path(__file__).parents[2]),
            *map(str, paths),
        ],
        capture_output=True,
        text=True,
        timeout=HANGS,
        env=CODE,
    )
    last = done.stderr.strip().splitlines()[-1]
    if anchors_only:
        assert last.endswith("silo ash: its anchor could not be written; nothing was sent")
    else:
        assert last.endswith(f"silo ash: its ledger {paths[0]} cannot be opened for writing")
    ledger = SqliteLedger("ash", *paths)
    # With the anchor read-only the row was committed, is charged, and was not sent: it can only be repeated.
    assert [found.round for found in ledger.rows("run")] == ([1, 2] if anchors_only else [1])
    ledger.close()
    assert faults("ash", *paths) == []


# Two processes


def hold(path: Path, anchor: Path, held) -> None:
    opened = SqliteLedger("ash", path, anchor)
    held.set()
    time.sleep(2 * HANGS)
    opened.close()


@pytest.fixture(scope="module")
def processes():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def test_a_ledger_that_another_process_holds_is_told_and_free_when_that_is_killed(tmp_path, processes, monkeypatch):
    paths = tmp_path / "ash.sqlite", tmp_path / "ash.anchor"
    held = processes.Event()
    holder = processes.Process(target=hold, args=(*paths, held), daemon=True)
    holder.start()
    assert held.wait(HANGS)
    with monkeypatch.context() as impatient:
        impatient.setattr(file_lock, "PATIENCE", 0.05)
        for use in (lambda: SqliteLedger("ash", *paths), lambda: faults("ash", *paths)):
            with pytest.raises(SiloError) as caught:
                use()
            message = f"silo ash: its ledger {paths[0]} is held by another process ({holder.pid})"
            assert str(caught.value).startswith(message)
    os.kill(holder.pid, signal.SIGKILL)
    holder.join(HANGS)
    SqliteLedger("ash", *paths).close()
    assert faults("ash", *paths) == []


RACES = 24
CAP = Cap(1.0, 1e-5, "basic")
SHARE = Charge(mu_squared=0.02, epsilon=0.6, delta=1e-6)


def races(folder: Path, name: str, start, outcomes) -> None:
    """Asks for six tenths of the cap of one silo after the other, each at the moment when the other process does."""
    for number in range(RACES):
        start.wait(HANGS)
        place = folder / str(number)
        try:
            ledger = SqliteLedger("ash", place / "ash.sqlite", place / "ash.anchor")
            try:
                ledger.open_run(name, "plan", name.encode() * 8, SHARE, CAP)
                message = "admitted"
            finally:
                ledger.close()
        except SiloError as error:
            message = f"{error.code}: {error.sentence}"
        except Exception as error:
            message = f"NOT A SENTENCE: {error!r}"
        outcomes.put((number, name, message))


def test_two_runs_that_race_for_the_last_of_a_cap_are_not_both_admitted(tmp_path, processes):
    """In half of the races the ledger is there, with a run on it; in the others both processes make it."""
    for number in range(0, RACES, 2):
        place = tmp_path / str(number)
        ledger = SqliteLedger("ash", place / "ash.sqlite", place / "ash.anchor")
        ledger.open_run("before", "plan", b"b" * 32, Charge(0.01, 0.2, 1e-6), CAP)
        ledger.close()
    start, outcomes = processes.Barrier(2), processes.Queue()
    arguments = [(tmp_path, name, start, outcomes) for name in ("left", "right")]
    both = [processes.Process(target=races, args=each, daemon=True) for each in arguments]
    for process in both:
        process.start()
    message: dict[int, dict[str, str]] = {}
    for _ in range(2 * RACES):
        number, name, sentence = outcomes.get(timeout=HANGS)
        message.setdefault(number, {})[name] = sentence
    for process in both:
        process.join(HANGS)
        assert process.exitcode == 0
    for number, sentences in message.items():
        admitted = [name for name, sentence in sentences.items() if sentence == "admitted"]
        assert len(admitted) == 1, sentences
        (other,) = [sentence for sentence in sentences.values() if sentence != "admitted"]
        place = tmp_path / str(number)
        before = 1 - number % 2
        left = "0.1999" if before else "0.4"  # as floats 1 - (0.2 + 0.6) is 0.19999999999999996, and rounded down
        refused = f"cap: its cap of epsilon 1 at delta 1e-05 (basic) has {left} left (runs so far: {before + 1}); run "
        assert other.startswith(refused) or "is held by another process" in other, sentences
        ledger = SqliteLedger("ash", place / "ash.sqlite", place / "ash.anchor")
        charges = ledger.charges()
        ledger.close()
        assert set(charges) == {*admitted, *(["before"] if before else [])}
        assert sum(charge.epsilon for charge in charges.values()) <= 1.0
        assert faults("ash", place / "ash.sqlite", place / "ash.anchor") == []


def test_the_anchor_is_read_when_the_ledger_is_held(tmp_path, monkeypatch):
    """Another process may write both between the two; what it then read of the anchor would not fit the ledger."""
    from fedcore.ledger import chained_file

    paths = tmp_path / "ash.sqlite", tmp_path / "ash.anchor"
    order, connect = [], chained_file.connect

    class Reading(Anchor):
        def __init__(self, path):
            order.append("anchor")
            super().__init__(path)

    monkeypatch.setattr(chained_file, "Anchor", Reading)
    monkeypatch.setattr(chained_file, "connect", lambda *a: (order.append("lock"), connect(*a))[1])
    SqliteLedger("ash", *paths).close()
    assert order == ["lock", "anchor"]
    # What is read afterwards is the mark that the opening wrote.
    mark = Anchor(paths[1]).mark
    assert (mark.sequence, mark.totals, mark.runs) == (1, Totals(0.0, 0.0, 0.0), 0) and mark.head != GENESIS
