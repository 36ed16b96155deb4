"""The runs that a durable ledger may contain, read before it is opened."""

from __future__ import annotations

from contextlib import closing

from fedcore.home import LedgerFolders
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.ledger.storage.known_runs import KnownRun
from tests.fedcore.ledger.test_leases import approve


def test_a_run_is_known_where_a_ledger_has_it_or_cannot_say(tmp_path):
    folders = LedgerFolders.below(tmp_path / "odd # name?")

    def known(silos, run):
        return KnownRun(folders, silos, run).anywhere()

    assert not known(["ash", "elm"], "run")
    for version, silo, run in (("v1", "ash", "run"), ("v2", "elm", "other")):
        with closing(SqliteLedger(silo, *folders.of(version, silo))) as ledger:
            approve(ledger, 5, run)
    before = [folders.of("v1", "ash")[0].read_bytes(), sorted(tmp_path.rglob("*"))]
    assert known(["elm", "ash"], "run") and not known(["elm"], "run")
    assert known(["elm"], "other") and not known(["oak"], "other")
    assert before == [folders.of("v1", "ash")[0].read_bytes(), sorted(tmp_path.rglob("*"))]
    with closing(SqliteLedger("elm", *folders.of("v2", "elm"))) as ledger:
        approve(ledger, 6, "third")
        assert known(["elm"], "third")  # it is held, and its newest entries are in its log, if anywhere
    folders.of("v2", "elm")[0].write_bytes(b"damaged" * 999)
    assert known(["elm"], "run")
    folders.of("v2", "elm")[0].unlink()
    assert known(["elm"], "run")  # its anchor is there
    assert not known(["oak"], "run") and not folders.of("v2", "elm")[0].exists()


def test_versions_are_asked_by_themselves_or_all_but_they(tmp_path):
    folders = LedgerFolders.below(tmp_path)
    for version, silo, run in (("v1", "ash", "old"), ("v2", "ash", "new"), ("v1", "elm", "new"), ("v3", "elm", "old")):
        with closing(SqliteLedger(silo, *folders.of(version, silo))) as ledger:
            approve(ledger, 5, run)
    old, new = (KnownRun(folders, ["ash", "elm"], run) for run in ("old", "new"))
    present, former, none = {"ash": "v2", "elm": "v1"}, {"ash": "v1", "elm": "v3"}, {"ash": "v9", "elm": "v9"}
    assert [new.at(present), new.at(former), new.at(none)] == [True, False, False]
    assert [new.elsewhere(present), new.elsewhere(former), new.elsewhere(none)] == [False, True, True]
    assert [old.at(present), old.elsewhere(present), old.elsewhere(former)] == [False, True, False]
    folders.of("v2", "ash")[0].unlink()
    assert old.at(present)
    third = KnownRun(folders, ["ash", "elm"], "third")
    assert third.at(present) and not third.elsewhere(present) and third.elsewhere(former)


def test_ledgers_that_cannot_be_asked_may_know_it(tmp_path):
    far, none = KnownRun(None, ["ash"], "run"), KnownRun(LedgerFolders.below(tmp_path), (), "run")
    assert far.at({"ash": "v1"}) and far.elsewhere({"ash": "v1"}) and far.anywhere()
    assert not none.at({"ash": "v1"}) and not none.anywhere()
