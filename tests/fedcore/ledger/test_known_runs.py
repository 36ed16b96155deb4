"""Which runs a durable ledger may know, before anybody holds it."""

from __future__ import annotations

from contextlib import closing

from fedcore.home import LedgerFolders
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.ledger.storage.known_runs import may_be_known
from tests.fedcore.ledger.test_leases import approve


def test_a_run_is_known_where_a_ledger_has_it_or_cannot_say(tmp_path):
    folders = LedgerFolders.below(tmp_path / "odd # name?")
    assert not may_be_known(folders, ["ash", "elm"], "run")
    for version, silo, run in (("v1", "ash", "run"), ("v2", "elm", "other")):
        with closing(SqliteLedger(silo, *folders.of(version, silo))) as ledger:
            approve(ledger, 5, run)
    before = [folders.of("v1", "ash")[0].read_bytes(), sorted(tmp_path.rglob("*"))]
    assert may_be_known(folders, ["elm", "ash"], "run") and not may_be_known(folders, ["elm"], "run")
    assert may_be_known(folders, ["elm"], "other") and not may_be_known(folders, ["oak"], "other")
    assert before == [folders.of("v1", "ash")[0].read_bytes(), sorted(tmp_path.rglob("*"))]
    with closing(SqliteLedger("elm", *folders.of("v2", "elm"))) as ledger:
        approve(ledger, 6, "third")
        assert may_be_known(folders, ["elm"], "third")  # it is held, and its newest entries are in its log, if anywhere
    folders.of("v2", "elm")[0].write_bytes(b"damaged" * 999)
    assert may_be_known(folders, ["elm"], "run")
    folders.of("v2", "elm")[0].unlink()
    assert may_be_known(folders, ["elm"], "run")  # its anchor is there
    assert not may_be_known(folders, ["oak"], "run") and not folders.of("v2", "elm")[0].exists()
