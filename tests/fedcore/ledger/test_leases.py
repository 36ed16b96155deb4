"""A ledger answers only the driver with a run's newest lease, also after it was closed and opened again."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import pytest

from fedcore.errors import SiloError
from fedcore.ledger import chained_file
from fedcore.ledger.memory import MemoryLedger
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.ledger.storage.verify import faults
from tests.fedcore.ledger.test_ledger_check import CHARGE, row


def paths(folder: Path) -> tuple[str, Path, Path]:
    return "ash", folder / "ledgers" / "v" / "ash.sqlite", folder / "anchors" / "v" / "ash.anchor"


@pytest.fixture(params=["memory", "sqlite"])
def ledger(request, tmp_path):
    made = MemoryLedger("ash") if request.param == "memory" else SqliteLedger(*paths(tmp_path))
    yield made
    made.close()


def approve(ledger, lease: int, run: str = "run") -> None:
    ledger.open_run(run, "plan", b"k" * 32, CHARGE, None, None, lease)


def refused(act, *arguments, code: str = "lease") -> str:
    with pytest.raises(SiloError) as caught:
        act(*arguments)
    assert caught.value.code == code
    return caught.value.sentence


def test_only_the_newest_lease_is_answered(ledger):
    approve(ledger, 5)
    ledger.commit("run", row(1), 5)
    approve(ledger, 7)
    message = refused(ledger.commit, "run", row(2), 5)
    assert message == "run run goes on under lease 7, which a later driver took; who asks has lease 5, and is refused"
    refused(approve, ledger, 5)
    refused(approve, ledger, 0)
    refused(ledger.commit, "run", row(2))
    refused(ledger.commit, "run", row(2), 8, code="plan")  # one that nothing was approved under
    refused(ledger.close_run, "run", 0.0, 5)
    assert not ledger.is_closed("run") and len(ledger.rows("run")) == 1
    ledger.commit("run", row(2), 7)
    ledger.close_run("run", 0.0, 7)
    assert ledger.is_closed("run")


def test_runs_have_leases_of_their_own_and_an_operator_needs_none(ledger):
    approve(ledger, 9, "one")
    approve(ledger, 3, "other")
    ledger.fence("one", 10)
    ledger.commit("other", row(1), 3)
    refused(ledger.commit, "one", row(1), 9)
    ledger.fence("one", 4)
    ledger.commit("one", row(1), 10)
    ledger.close_run("one", 0.0)
    assert ledger.is_closed("one")


def test_a_ledger_that_was_closed_still_refuses_an_older_lease(tmp_path):
    ledger = SqliteLedger(*paths(tmp_path))
    approve(ledger, 5)
    ledger.commit("run", row(1), 5)
    approve(ledger, 6)
    ledger.close()
    again = SqliteLedger(*paths(tmp_path))
    refused(approve, again, 5)
    refused(again.commit, "run", row(2), 5)
    again.commit("run", row(2), 6)
    again.close_run("run", 0.0, 6)
    approve(again, 8)  # the run is closed, but its driver died before it had recorded that
    again.close()
    assert faults(*paths(tmp_path)) == []
    last = SqliteLedger(*paths(tmp_path))
    refused(approve, last, 6)
    assert last.is_closed("run")
    last.close()


def test_a_lease_costs_no_charge_and_is_written_once(tmp_path):
    ledger = SqliteLedger(*paths(tmp_path))
    approve(ledger, 5)
    before = ledger.charges()
    for lease in (6, 7, 8):
        approve(ledger, lease)
        approve(ledger, lease)
    assert ledger.charges() == before and ledger.runs == 1
    kinds = [entry.kind for entry in ledger._state.entries]
    assert kinds == ["opening", "approval", "lease", "lease", "lease", "lease"]
    ledger.close()


@pytest.mark.parametrize("ended", ["fence", "close"])
def test_an_answer_that_is_being_computed_is_not_committed_once_another_took_over(tmp_path, ended):
    """The check of the lease and COMMIT are one transaction: a newer lease waits for it, or is seen by it."""
    ledger = SqliteLedger(*paths(tmp_path))
    approve(ledger, 5)
    ledger.commit("run", row(1), 5)
    computing, go_on, codes = threading.Event(), threading.Event(), []

    def answer() -> None:
        assert ledger.find("run", 1, 2) is None
        computing.set()
        go_on.wait(10)
        try:
            ledger.commit("run", row(2), 5)
        except SiloError as error:
            codes.append(error.code)

    thread = threading.Thread(target=answer)
    thread.start()
    assert computing.wait(10)
    if ended == "fence":
        ledger.fence("run", 6)
    else:
        ledger.close()
        other = SqliteLedger(*paths(tmp_path))  # whose lock it is now
        approve(other, 6)
    go_on.set()
    thread.join(10)
    assert codes == ["lease" if ended == "fence" else "ledger"]
    (ledger if ended == "fence" else other).close()
    assert faults(*paths(tmp_path)) == []
    last = SqliteLedger(*paths(tmp_path))
    assert [(each.phase, each.round) for each in last.rows("run")] == [(1, 1)]
    last.close()


def test_who_lets_go_waits_for_a_commit_and_no_longer(tmp_path, monkeypatch):
    """The file is not closed during a transaction, and its anchor is not written after its release."""
    ledger = SqliteLedger(*paths(tmp_path))
    approve(ledger, 5)
    within, go_on = threading.Event(), threading.Event()
    real = chained_file.ChainedFile._reads_back

    def slow(*arguments) -> bool:
        within.set()
        go_on.wait(10)
        return real(*arguments)

    monkeypatch.setattr(chained_file.ChainedFile, "_reads_back", slow)
    committing = threading.Thread(target=ledger.commit, args=("run", row(1), 5))
    committing.start()
    assert within.wait(10)
    closing = threading.Thread(target=ledger.close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()
    go_on.set()
    committing.join(10)
    closing.join(10)
    monkeypatch.undo()
    refused(ledger.find, "run", 1, 1, code="ledger")
    refused(ledger.commit, "run", row(2), 5, code="ledger")
    other = SqliteLedger(*paths(tmp_path))
    assert len(other.rows("run")) == 1
    other.close()
    assert faults(*paths(tmp_path)) == []


def test_who_holds_a_ledger_is_named(tmp_path, impatient):
    ledger = SqliteLedger(*paths(tmp_path))
    way_out = "wait for it, or end it if it hangs, is stopped, or nobody drives its run (`fedcore runs`)"
    held = f"is held by another process ({os.getpid()}); {way_out}"
    assert held in refused(SqliteLedger, *paths(tmp_path), code="ledger")
    approve(ledger, 5)
    assert f"({os.getpid()}, for run run); wait" in refused(SqliteLedger, *paths(tmp_path), code="ledger")
    ledger.close()


@pytest.mark.parametrize("note", [b"", b"\x1b[31m 7\n", b"1 " + b"r" * 101 + b"\n", b"x\n", b"1 a b\n", b"\xff" * 5000])
def test_a_note_that_somebody_else_wrote_is_not_repeated(tmp_path, impatient, note):
    ledger = SqliteLedger(*paths(tmp_path))
    paths(tmp_path)[2].with_suffix(".lock").write_bytes(note)
    assert "is held by another process; wait" in refused(SqliteLedger, *paths(tmp_path), code="ledger")
    ledger.close()


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_note_is_written_to_no_other_file(tmp_path, link):
    _, _, anchor = paths(tmp_path)
    anchor.parent.mkdir(parents=True)
    other = tmp_path / "other"
    other.write_bytes(b"kept")
    link(other, anchor.with_suffix(".lock"))
    ledger = SqliteLedger(*paths(tmp_path))
    approve(ledger, 5)
    ledger.close()
    assert other.read_bytes() == b"kept"


def test_a_ledger_that_nobody_refers_to_is_free_before_the_collector_comes(tmp_path, impatient):
    """A connection of SQLite refers to itself, and to no ledger."""
    gc.collect()
    gc.disable()
    try:
        approve(SqliteLedger(*paths(tmp_path)), 5)
        SqliteLedger(*paths(tmp_path)).close()
    finally:
        gc.enable()
