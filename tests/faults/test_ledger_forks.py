"""Two entries of one number, both with true MACs, of which one was never committed.

On a full disk an entry is refused whose page is in the write-ahead file already, MAC and all; whoever reads that file
has it, and the silo writes another entry of that number later. Each fits the entry before it. Here the entry that was
refused is made by a twin of the silo, with the same key, that had room for it.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from fedcore.accounting.filters import Charge
from fedcore.errors import SiloError
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.ledger.storage.verify import faults
from tests.faults.one_silo import KINDS, One, records
from tests.faults.tampering import change, copy, put
from tests.faults.test_ledger_attacks import ROUNDS, Silo
from tests.faults.test_ledger_kills import row

pytestmark = pytest.mark.usefixtures("impatient")

CHARGE = Charge(0.25, 1.0, 1e-6)


def refused_entry(path: Path, anchor: Path, folder: Path, act: Callable[[SqliteLedger], object]) -> tuple:
    """The last row that `act` would have written if the disk had had room. The ledger must be closed."""
    twin = folder / path.parent.name / path.name
    twin.parent.mkdir(parents=True)
    shutil.copy(path, twin)
    for suffix in (".anchor", ".key"):
        shutil.copy(anchor.with_suffix(suffix), folder / ("ash" + suffix))
    ledger = SqliteLedger("ash", twin, folder / "ash.anchor")
    act(ledger)
    ledger.close()
    with closing(sqlite3.connect(twin)) as db:
        return db.execute("SELECT * FROM entries ORDER BY sequence DESC LIMIT 1").fetchone()


def show(path: Path, entry: tuple) -> None:
    """`entry` in the place of the one of its number."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM entries WHERE sequence = ?", entry[:1])
        db.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", entry)
        db.commit()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


class Forked(Silo):
    """A silo with two runs, `left` and `right`."""

    def open(self, run: str = "left") -> None:
        try:
            self.one = One(self.folder, self.kind, *records(), run=run, approve=False)
        except SiloError as error:
            self.refusals.append(error)

    def approve(self, run: str) -> None:
        try:
            self.one.site.approve(replace(self.one.agreement, run=run).to_bytes())
            self.one.run = run
        except SiloError as error:
            self.refusals.append(error)

    def charged(self) -> dict[str, float]:
        ledger = SqliteLedger("ash", self.path, self.anchor)
        try:
            return {run: charge.mu_squared for run, charge in ledger.charges().items()}
        finally:
            ledger.close()

    def spent_by(self, run: str) -> float:
        mine = sum(len(found) for (name, _), found in self.answers.items() if name == run)
        return self.spent() * mine / sum(map(len, self.answers.values()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_closing_that_was_never_committed_does_not_open_another_run_again(tmp_path, kind):
    """An attacker who swaps the two closings would get the answers of `left` at no charge.

    A full disk prevented the closing of `right` with nothing answered. Then `left` was closed, and `right` answered in
    full.
    """
    (tmp_path / "plan").mkdir()
    silo = Forked(tmp_path / "version", kind)
    silo.open()
    silo.approve("left")
    silo.approve("right")
    silo.close()
    with closing(sqlite3.connect(silo.path)) as db:
        keys = dict(db.execute("SELECT run, hex(key) FROM keys"))
    never = refused_entry(silo.path, silo.anchor, tmp_path / "twin", lambda ledger: ledger.close_run("right", 0.0))
    silo.open()
    silo.approve("left")
    silo.one.site.close_run("left")
    silo.approve("right")
    silo.ask(*range(1, ROUNDS + 1))
    silo.close()
    assert silo.faults() == [] and silo.refusals == [] and len(silo.answers) == ROUNDS
    assert never[1:3] == ("closing", "right")

    true = copy(silo.path, tmp_path / "true")
    show(silo.path, never)
    faults = silo.faults()
    silo.open()
    change(true, f"INSERT INTO keys VALUES ('left', x'{keys['left']}')")
    put(silo.path, true)
    if silo.one is not None:
        silo.interrupted()
        silo.approve("left")
        silo.ask(*range(1, ROUNDS + 1), model=1.0)
    silo.close()
    change(silo.path, "DELETE FROM keys WHERE run = 'left'")
    charged = silo.charged()
    assert silo.most() == 1 and charged["right"] >= silo.spent_by("right") * (1 - 1e-9)
    assert charged["left"] >= silo.spent_by("left") * (1 - 1e-9), "left was answered at no charge"
    assert faults and silo.refusals[0].code in ("ledger-lost", "ledger-damaged") and silo.faults() == []


@pytest.mark.parametrize("fitting", [True, False])
def test_a_policy_that_was_never_committed_is_not_told_as_one_that_was_in_force(tmp_path, fitting):
    paths = tmp_path / "version" / "ash.sqlite", tmp_path / "ash.anchor"
    ledger = SqliteLedger("ash", *paths)
    ledger.open_run("run", "plan", b"k" * 32, CHARGE, None)
    ledger.close()
    never = refused_entry(*paths, tmp_path / "twin", lambda twin: twin.record_policy("a" * 64, "{}"))
    ledger = SqliteLedger("ash", *paths)
    ledger.record_policy("b" * 64, "{}")
    for round in (1, 2, 3):
        ledger.commit("run", row(round))
    ledger.close()
    assert faults("ash", *paths) == []
    show(paths[0], never)
    with pytest.raises(SiloError) as caught:
        assert SqliteLedger("ash", *paths, fitting=fitting).policies()[0][1] == "b" * 64
    assert caught.value.code in ("ledger-lost", "ledger-damaged") and faults("ash", *paths)


def test_an_entry_that_was_never_committed_does_not_come_back_behind_the_last_one(tmp_path):
    """The anchor knows the last entry by its MAC. The file with the other one in its place is not the anchor's."""
    paths = tmp_path / "version" / "ash.sqlite", tmp_path / "ash.anchor"
    ledger = SqliteLedger("ash", *paths)
    ledger.open_run("run", "plan", b"k" * 32, CHARGE, None)
    ledger.close()
    never = refused_entry(*paths, tmp_path / "twin", lambda twin: twin.close_run("run", 0.0))
    ledger = SqliteLedger("ash", *paths)
    ledger.commit("run", row(1))
    ledger.close()
    show(paths[0], never)
    assert "another copy was written to" in faults("ash", *paths)[0]
    with pytest.raises(SiloError, match="another copy was written to"):
        SqliteLedger("ash", *paths)
    ledger = SqliteLedger("ash", *paths, fitting=False)
    ledger.reconcile()
    ledger.close()
    ledger = SqliteLedger("ash", *paths)
    assert sum(charge.mu_squared for charge in ledger.charges().values()) >= CHARGE.mu_squared
    ledger.close()
