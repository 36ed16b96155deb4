"""A ledger's file in UTF-16, where SQL compares texts that Python reads differently.

A text of an odd number of bytes differs from 'release' in SQL, and is 'release' in Python. SQL counts such an entry
among those that are no releases. Without a check of its kind, it makes up for a hidden entry.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from fedcore.accounting.filters import Charge
from fedcore.errors import SiloError
from fedcore.ledger.sqlite import SqliteLedger
from tests.faults.one_silo import KINDS
from tests.faults.tampering import change, copy, put, utf16
from tests.faults.test_ledger_attacks import ROUNDS, Silo
from tests.faults.test_ledger_kills import row

pytestmark = pytest.mark.usefixtures("impatient")

CHARGE = Charge(0.25, 1.0, 1e-6)


@pytest.fixture
def silo(tmp_path, kind):
    """A closed silo that has answered nothing yet."""
    (tmp_path / "plan").mkdir()
    made = Silo(tmp_path / "version", kind)
    yield made
    made.close()


def approve(silo: Silo, run: str) -> None:
    """One more run, of a silo that is open."""
    try:
        silo.one.site.approve(replace(silo.one.agreement, run=run).to_bytes())
        silo.one.run = run
    except SiloError as error:
        silo.refusals.append(error)


def key_of(path: Path, run: str) -> str:
    """The key of a run, which every reader of the file has, in hexadecimal digits."""
    with closing(sqlite3.connect(path)) as db:
        return dict(db.execute("SELECT run, hex(key) FROM keys"))[run]


def test_the_odd_texts_of_these_tests_are_what_they_are_said_to_be(tmp_path):
    paths = tmp_path / "version" / "ash.sqlite", tmp_path / "ash.anchor"
    ledger = SqliteLedger("ash", *paths)
    ledger.open_run("run", "plan", b"k" * 32, CHARGE, None)
    ledger.commit("run", row(1))
    ledger.close()
    utf16(paths[0], odd=[3])
    with closing(sqlite3.connect(paths[0])) as db:
        found = db.execute("SELECT sequence, kind, typeof(kind), kind IS NOT 'release' FROM entries").fetchall()
        assert found[-1] == (3, "release", "text", 1)
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("odd", [(), (3,), (3, 4, 5)])
def test_no_address_is_answered_twice_in_another_encoding(silo, odd):
    silo.open()
    silo.ask(1, 2, 3)
    silo.close()
    utf16(silo.path, odd=odd)
    faults = silo.faults()
    silo.open()
    silo.ask(1, 2, 3)
    silo.ask(*range(1, ROUNDS + 1), model=1.0)
    assert silo.most() == 1
    assert bool(faults) == bool(odd) or not silo.one
    if odd:
        assert {error.code for error in silo.refusals} <= {"ledger-lost", "ledger-damaged"} and silo.one is None


@pytest.mark.parametrize("fitting", [True, False])
def test_an_odd_release_does_not_stand_for_a_policy_that_was_hidden(tmp_path, fitting):
    """Opening compares the entries that are no releases, and their number, with the anchor."""
    paths = tmp_path / "version" / "ash.sqlite", tmp_path / "ash.anchor"
    ledger = SqliteLedger("ash", *paths)
    ledger.record_policy("d" * 64, "{}")
    ledger.open_run("run", "plan", b"k" * 32, CHARGE, None)
    for round in (1, 2, 3):
        ledger.commit("run", row(round))
    ledger.close()
    utf16(paths[0], "UPDATE entries SET kind = 'release', phase = 1002 WHERE kind = 'policy'", odd=[4])
    with pytest.raises(SiloError) as caught:
        assert len(SqliteLedger("ash", *paths, fitting=fitting).policies()) == 1
    assert caught.value.code in ("ledger-lost", "ledger-damaged")


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_reconciled_is_not_opened_again(silo, tmp_path):
    """Its closing is hidden while the ledger is opened, and there again before its entries are walked."""
    silo.open("first")
    silo.ask(1)
    approve(silo, "run")
    before, key = copy(silo.path, tmp_path / "before"), key_of(copy(silo.path, tmp_path / "peek"), "run")
    silo.ask(*range(1, ROUNDS + 1))
    silo.close()
    put(silo.path, before)
    ledger = SqliteLedger("ash", silo.path, silo.anchor, fitting=False)
    ledger.reconcile()
    ledger.close()
    assert silo.faults() == [] and not silo.refusals

    true = copy(silo.path, tmp_path / "true")
    utf16(
        silo.path,
        "UPDATE entries SET kind = 'release', phase = 999 WHERE kind = 'closing' AND run = 'run'",
        f"INSERT INTO keys VALUES ('run', x'{key}')",
        odd=[3],
    )
    faults = silo.faults()
    silo.open("first")
    change(true, f"INSERT INTO keys VALUES ('run', x'{key}')")
    put(silo.path, true)
    if silo.one is not None:
        silo.interrupted()
        approve(silo, "run")
        silo.ask(*range(1, ROUNDS + 1), model=1.0)
    silo.close()
    change(silo.path, "DELETE FROM keys WHERE run = 'run'")
    ledger = SqliteLedger("ash", silo.path, silo.anchor)
    charged = sum(charge.mu_squared for charge in ledger.charges().values())
    ledger.close()
    assert silo.most() == 1, {address: len(found) for address, found in silo.answers.items()}
    assert charged >= silo.spent() * (1 - 1e-9)
    assert faults and silo.refusals[0].code in ("ledger-lost", "ledger-damaged")
    assert silo.faults() == []
