"""A planted rollback journal beside the ledger's file.

It may name any file as its super-journal, for instance the ledger's key or anchor, or a policy. SQLite deletes that
file, with the silo's rights, after it has played the journal back.
"""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from fedcore.errors import SiloError
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.ledger.storage.verify import faults
from tests.faults.one_silo import KINDS
from tests.faults.tampering import change, copy, put, rollback_mode, super_journal
from tests.faults.test_ledger_attacks import ROUNDS, Silo

pytestmark = [pytest.mark.usefixtures("impatient"), pytest.mark.parametrize("kind", KINDS)]
MODES: dict[str, Callable[[Path], None]] = {"write-ahead": lambda path: None, "rollback": rollback_mode}


@pytest.fixture
def silo(tmp_path, kind):
    """A closed silo that has answered the first two rounds of its run, with a policy beside it."""
    (tmp_path / "plan").mkdir()
    made = Silo(tmp_path / "version", kind)
    made.open()
    made.ask(1, 2)
    made.close()
    (tmp_path / "policy.yaml").write_text("methods: []\n")
    assert made.faults() == [] and not made.refusals
    yield made
    made.close()


def victims(silo: Silo) -> dict[str, Path]:
    """The files that a ledger or a silo requires and the process can delete."""
    beside = {suffix: silo.anchor.with_suffix(suffix) for suffix in (".key", ".anchor", ".lock")}
    return beside | {"policy": silo.folder.parent / "policy.yaml", "itself": silo.path}


def journal_of(silo: Silo) -> Path:
    return silo.path.with_name(silo.path.name + "-journal")


def reconcile(silo: Silo) -> None:
    with suppress(SiloError):
        ledger = SqliteLedger("ash", silo.path, silo.anchor, fitting=False)
        ledger.reconcile()
        ledger.close()


USES: dict[str, Callable[[Silo], object]] = {
    "open": lambda silo: (silo.open(), silo.close()),
    "verify": lambda silo: silo.faults(),
    "reconcile": reconcile,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", [".key", ".anchor", "policy", "itself"])
def test_a_journal_makes_the_silo_delete_no_file(silo, name, use, mode):
    victim = victims(silo)[name]
    MODES[mode](silo.path)
    before = {path: path.read_bytes() for path in victims(silo).values()}
    super_journal(silo.path, victim)
    USES[use](silo)
    assert victim.exists(), f"{use} deleted {victim.name}"
    assert {path: path.read_bytes() for path in victims(silo).values()} == before


def test_a_journal_is_told_and_what_was_sent_is_sent_again_when_it_is_gone(silo):
    super_journal(silo.path, silo.anchor.with_suffix(".key"))
    faults = silo.faults()
    silo.open()
    assert [error.sentence for error in silo.refusals] == faults and "journal" in faults[0]
    assert silo.refusals[0].code == "ledger" and str(silo.anchor) not in faults[0]
    journal_of(silo).unlink()
    silo.open()
    silo.ask(1, 2)
    silo.ask(1, 2, model=1.0)
    silo.close()
    assert silo.most() == 1 and [error.code for error in silo.refusals[1:]] == ["replayed", "replayed"]
    assert silo.faults() == []


def test_no_ledger_begins_anew_because_its_key_and_anchor_were_deleted(silo, tmp_path):
    """Without both, and with an empty ledger, all would be answered again at no charge, and no check would fail."""
    backup = copy(silo.path, tmp_path / "kept")
    super_journal(silo.path, silo.anchor.with_suffix(".key"))
    silo.open()
    silo.close()
    journal_of(silo).unlink(missing_ok=True)
    change(silo.path, "DELETE FROM entries", "DELETE FROM keys")
    super_journal(silo.path, silo.anchor)
    silo.open()
    silo.close()
    journal_of(silo).unlink(missing_ok=True)
    silo.open()
    silo.ask(*range(1, ROUNDS + 1), model=1.0)
    silo.close()
    assert silo.most() == 1 and silo.refusals and silo.faults()
    put(silo.path, backup)
    ledger = SqliteLedger("ash", silo.path, silo.anchor)
    assert ledger.charges()["run"].mu_squared >= silo.spent() * (1 - 1e-9)
    ledger.close()


@pytest.mark.skipif(not hasattr(fcntl, "F_OFD_SETLK"), reason="no locks of open files, which SQLite meets")
@pytest.mark.parametrize("mode", MODES)
def test_a_journal_that_comes_after_the_look_for_one_deletes_nothing_either(silo, monkeypatch, mode):
    """The journal is planted at the latest moment: in the call that opens the file."""
    victim, connect = victims(silo)["policy"], sqlite3.connect
    MODES[mode](silo.path)

    def planted(name, *arguments, **options):
        if Path(name) == silo.path:
            super_journal(silo.path, victim)
        return connect(name, *arguments, **options)

    before = silo.path.stat().st_size
    with monkeypatch.context() as attacked:
        attacked.setattr(sqlite3, "connect", planted)
        silo.open()
        silo.ask(1, 2, 3)
        silo.close()
        assert victim.exists() and silo.path.stat().st_size >= before
        journal_of(silo).unlink(missing_ok=True)
        silo.faults()
        assert victim.exists()
    journal_of(silo).unlink(missing_ok=True)
    with closing(sqlite3.connect(silo.path)) as db:  # a ledger in the form for rollback journals is not opened
        db.execute("PRAGMA journal_mode = WAL").fetchone()
    silo.open()
    silo.ask(1, 2, 3)
    silo.ask(1, 2, 3, model=1.0)
    silo.close()
    assert silo.most() == 1 and len(silo.answers) == 3 and silo.faults() == []
    ledger = SqliteLedger("ash", silo.path, silo.anchor)
    assert ledger.charges()["run"].mu_squared >= silo.spent() * (1 - 1e-9)
    ledger.close()
    assert faults("ash", silo.path, silo.anchor) == []
