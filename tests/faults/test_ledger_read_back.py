"""An honest disk fails once, as an entry is read back after COMMIT: nothing is sent or taken for damage."""

from __future__ import annotations

import sqlite3

import pytest

from fedcore.accounting.filters import Charge
from fedcore.errors import SiloError
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.ledger.storage.verify import faults
from tests.faults.test_ledger_kills import row
from tests.faulty_disk import FaultyDisk

CHARGE = Charge(0.25, 1.0, 1e-6)


@pytest.fixture
def ledger(tmp_path):
    """An open ledger with an approved run, and its paths."""
    paths = tmp_path / "version" / "ash.sqlite", tmp_path / "version" / "ash.anchor"
    opened = SqliteLedger("ash", *paths)
    opened.open_run("run", "plan", b"k" * 32, CHARGE, None)
    yield opened, paths
    opened.close()


def fail_once(ledger: SqliteLedger) -> list[str]:
    """The first look at the last entry fails; the list has that statement from then on."""
    failed: list[str] = []

    def failing(db: sqlite3.Connection, statement: str) -> None:
        if not failed and "MAX(sequence)" in statement:
            failed.append(statement)
            raise sqlite3.OperationalError("disk I/O error")

    ledger._db = FaultyDisk(ledger._connection, failing)
    return failed


def test_a_release_that_could_not_be_read_back_is_found_later_and_charged_once(ledger):
    opened, paths = ledger
    failed = fail_once(opened)
    with pytest.raises(SiloError, match="could not be read back; nothing was sent") as caught:
        opened.commit("run", row(1))
    assert failed and caught.value.code == "ledger"
    assert opened.find("run", 1, 1) == row(1), "it was committed, so its bytes are what may be sent"
    with pytest.raises(SiloError):
        opened.commit("run", row(1))
    opened.commit("run", row(2))
    assert [each.round for each in opened.rows("run")] == [1, 2]
    opened.close()
    assert faults("ash", *paths) == []


@pytest.mark.parametrize("what", ["approval", "closing"])
def test_a_charge_that_could_not_be_read_back_counts_once(ledger, what):
    opened, paths = ledger
    act = {
        "approval": lambda: opened.open_run("next", "plan", b"n" * 32, CHARGE, None),
        "closing": lambda: opened.close_run("run", 0.01),
    }[what]
    failed = fail_once(opened)
    with pytest.raises(SiloError, match="could not be read back; nothing was sent"):
        act()
    assert failed
    act()
    charged = [charge.mu_squared for charge in opened.charges().values()]
    assert charged == ([0.25, 0.25] if what == "approval" else [0.01])
    opened.close()
    assert faults("ash", *paths) == []
