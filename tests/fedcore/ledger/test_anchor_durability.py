"""Durability of anchors: an anchor with changed totals is on disk before the charge counts."""

import os
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Charge
from fedcore.errors import SiloError
from fedcore.ledger.anchor import Anchor
from fedcore.ledger.ledger import Row, payload_digest
from fedcore.ledger.sqlite import SqliteLedger

CHARGE = Charge(mu_squared=0.25, epsilon=1.0, delta=1e-6)


@pytest.fixture
def on_disk(tmp_path, monkeypatch):
    """on_disk(): the anchor's mark after a power cut, that is, its file at the last fsync."""
    path, kept = tmp_path / "a.anchor", {}
    fsync, replace = os.fsync, os.replace

    def waited(file):
        fsync(file)
        opened = Path(os.readlink(f"/proc/self/fd/{file}"))
        kept[opened] = opened.read_bytes() if opened.is_file() else b""

    def renamed(source, target):
        replace(source, target)
        kept[Path(target)] = kept.pop(Path(source), b"")

    monkeypatch.setattr(os, "fsync", waited)
    monkeypatch.setattr(os, "replace", renamed)

    def after_a_cut():
        there = tmp_path / "cut"
        there.mkdir(exist_ok=True)
        (there / "a.anchor").write_bytes(kept[path])
        (there / "a.key").write_bytes(kept[path.with_suffix(".key")])
        return Anchor(there / "a.anchor").mark

    return after_a_cut


@pytest.fixture
def ledger(tmp_path, on_disk):
    with closing(SqliteLedger("ash", tmp_path / "a.sqlite", tmp_path / "a.anchor")) as made:
        yield made


def row(round):
    payload, digested = payload_digest(np.array([1.0, -1.0]))
    return Row(1, round, bytes(32), GaussianRelease(3, 9, 0.25, 0.5), digested, payload)


def test_approvals_and_closings_wait_until_the_disk_has_the_new_total(ledger, on_disk):
    for number in (1, 2):
        ledger.open_run(f"run {number}", "0" * 64, b"k" * 32, CHARGE, None)
        mark = on_disk()
        assert (mark.totals.mu_squared, mark.runs) == (0.25 * number, number)
        assert (mark.sequence, mark.head) == (ledger.end.sequence, ledger.end.mac)
    ledger.close_run("run 1", 0.125)
    mark = on_disk()
    assert mark.totals.mu_squared == 0.375 and mark.sequence == ledger.end.sequence
    assert ledger.charges()["run 1"].mu_squared == 0.125


def test_a_closing_that_changes_no_total_waits_too(ledger, on_disk):
    ledger.open_run("run", "0" * 64, b"k" * 32, CHARGE, None)
    ledger.close_run("run", CHARGE.mu_squared)
    assert on_disk().sequence == ledger.end.sequence


def test_releases_do_not_wait(ledger, on_disk):
    """A wait would cost each round a disk write; the ledger itself has all that a power cut takes from the anchor."""
    ledger.open_run("run", "0" * 64, b"k" * 32, CHARGE, None)
    before = on_disk()
    for number in (1, 2):
        ledger.commit("run", row(number))
    assert on_disk() == before
    assert ledger.end.sequence == before.sequence + 2


def test_what_follows_a_total_whose_own_mark_was_not_written_waits_in_its_place(ledger, on_disk, monkeypatch):
    """The approval of another run is committed and its mark fails; a release is what writes the anchor next."""
    ledger.open_run("run", "0" * 64, b"k" * 32, CHARGE, None)
    write = Anchor.write

    def fails(self, mark, durable=False):
        raise OSError("no space")

    monkeypatch.setattr(Anchor, "write", fails)
    with pytest.raises(SiloError, match="anchor could not be written"):
        ledger.open_run("other", "0" * 64, b"o" * 32, CHARGE, None)
    assert on_disk().totals.mu_squared == 0.25
    monkeypatch.setattr(Anchor, "write", write)
    ledger.commit("run", row(1))
    mark = on_disk()
    assert (mark.totals.mu_squared, mark.runs, mark.sequence) == (0.5, 2, ledger.end.sequence)
