"""An adversary who can write a silo's SQLite file only gets no second answer, no free one, and no lower charge."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedcore.accounting.composition import worst_mu_squared
from fedcore.errors import SiloError
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.ledger.storage.verify import faults
from tests.faults.one_silo import KINDS, One, records
from tests.faults.tampering import COLUMNS, DELETES_RELEASES, change, copy, not_null, put, shadow_index
from tests.faulty_disk import FaultyDisk

ROUNDS = 5
pytestmark = [pytest.mark.usefixtures("impatient"), pytest.mark.parametrize("kind", KINDS)]


class Silo:
    """A silo that is opened and closed, and a server that stores each different answer that the silo ever gave."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind = folder, kind
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.anchor = folder / "ash.sqlite", folder / "ash.anchor"
        self.answers: dict[tuple[str, int], set[bytes]] = {}
        self.one: One | None = None
        self.refusals: list[SiloError] = []

    def open(self, run: str = "run") -> None:
        try:
            self.one = One(self.folder, self.kind, *records(), run=run)
        except SiloError as error:
            self.refusals.append(error)

    def ask(self, *rounds: int, model: float = 0.0) -> None:
        """Queries these rounds at a model of this size; stores answers and refusals."""
        for round in rounds if self.one is not None else ():
            try:
                answer = self.one.ask(np.full(4, model), round).tobytes()
                self.answers.setdefault((self.one.run, round), set()).add(answer)
            except SiloError as error:
                self.refusals.append(error)

    def close(self) -> None:
        if self.one is not None:
            self.one.close()
        self.one = None

    def interrupted(self) -> None:
        """A disk error after which the outcome of the last COMMIT is unknown: the silo opens the file again."""
        self.one.ledger._disconnect()

    def most(self) -> int:
        """The largest number of different answers at one address."""
        return max(map(len, self.answers.values()))

    def faults(self) -> list[str]:
        return faults("ash", self.path, self.anchor)

    def spent(self) -> float:
        """Sum of the squared mu of all answers that the silo ever gave, by hand."""
        plan = One(self.folder.parent / "plan", self.kind, *records(), approve=False)
        event = plan.plan.phases[0].event("ash", 1)
        plan.close()
        return sum(map(len, self.answers.values())) * (event.sensitivity / event.sigma) ** 2


@pytest.fixture
def silo(tmp_path, kind):
    """A closed silo that has answered all rounds of its run."""
    (tmp_path / "plan").mkdir()
    made = Silo(tmp_path / "version", kind)
    made.open()
    made.ask(*range(1, ROUNDS + 1))
    made.close()
    assert made.most() == 1 and made.faults() == [] and not made.refusals
    yield made
    made.close()


# Across a restart: what opening the ledger, or going on with the run, has to find


TAMPERED: dict[str, Callable[[Path], None]] = {
    "all releases but the last deleted": lambda path: change(
        path, "DELETE FROM entries WHERE kind = 'release' AND sequence < (SELECT MAX(sequence) FROM entries)"
    ),
    "one release deleted": lambda path: change(
        path, "DELETE FROM entries WHERE sequence = 4", "DELETE FROM entries WHERE sequence = 3"
    ),
    "a trigger deletes releases": lambda path: change(path, DELETES_RELEASES),
    "a trigger moves releases": lambda path: change(
        path,
        "CREATE TRIGGER moved AFTER INSERT ON entries WHEN NEW.kind = 'release' "
        "BEGIN UPDATE entries SET round = -NEW.sequence WHERE sequence = NEW.sequence; END",
    ),
    "releases moved to another run": lambda path: change(
        path, "UPDATE entries SET run = 'elsewhere' WHERE kind = 'release'"
    ),
    "releases of no known kind": lambda path: change(path, "UPDATE entries SET kind = 'note' WHERE kind = 'release'"),
    "kinds as bytes": lambda path: change(
        path, "UPDATE entries SET kind = CAST('release' AS BLOB) WHERE kind = 'release'"
    ),
    "kinds that are NULL": lambda path: not_null(path, "UPDATE entries SET kind = NULL WHERE kind = 'release'"),
    "releases in another order": lambda path: change(
        path, "UPDATE entries SET run = 'elsewhere', round = 3 - round WHERE sequence IN (3, 4)"
    ),
    "an index of addresses that holds nothing": shadow_index,
}


@pytest.mark.parametrize("name", TAMPERED)
def test_no_address_is_answered_twice_after_a_restart(silo, name):
    TAMPERED[name](silo.path)
    faults = silo.faults()
    silo.open()
    for model in (0.5, 1.0, 2.0):
        silo.ask(*range(1, ROUNDS + 1), model=model)
    silo.close()
    assert silo.most() == 1, {address: len(found) for address, found in silo.answers.items()}
    assert silo.refusals and faults


def test_rows_that_only_the_index_has_lost_are_found_in_the_table(silo):
    """Opening trusts no index, so it refuses nothing: the answers are there, and are sent again."""
    shadow_index(silo.path)
    faults = silo.faults()
    silo.open()
    silo.ask(*range(1, ROUNDS + 1), model=1.0)
    assert {error.code for error in silo.refusals} == {"replayed"} and len(silo.refusals) == ROUNDS
    silo.ask(*range(1, ROUNDS + 1))
    assert silo.most() == 1 and len(silo.refusals) == ROUNDS and "pages are damaged" in faults[0]


SCHEMAS = {
    "an index dropped": ("DROP INDEX addresses",),
    "an index added": ("CREATE INDEX more ON entries (mac)",),
    "a table added": ("CREATE TABLE more (x)",),
    "a view added": ("CREATE VIEW more AS SELECT * FROM entries",),
    "statistics for the planner": ("ANALYZE",),
    "a view for a table": (
        "ALTER TABLE entries RENAME TO real_entries",
        "CREATE VIEW entries AS SELECT * FROM real_entries WHERE kind != 'release'",
    ),
    "a column added": ("ALTER TABLE entries ADD COLUMN more",),
    "an index of another kind": (
        "DROP INDEX addresses",
        "CREATE INDEX addresses ON entries (run, phase, round) WHERE kind = 'release'",
    ),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_another_schema_is_refused_and_told(silo, name):
    change(silo.path, *SCHEMAS[name])
    faults = silo.faults()
    silo.open()
    (refusal,) = silo.refusals
    assert refusal.code == "ledger-damaged" and faults == [refusal.sentence]
    assert "is not its own" in refusal.sentence or "lacks" in refusal.sentence


def test_a_trigger_that_was_there_first_gives_no_free_answers(tmp_path, kind):
    (tmp_path / "plan").mkdir()
    silo = Silo(tmp_path / "version", kind)
    silo.open("before")
    silo.close()
    change(silo.path, DELETES_RELEASES)
    silo.open()
    for model in range(20):
        silo.ask(1, model=0.1 * model)
    charged = None
    if silo.one is not None:
        silo.one.site.close_run("run")
        charged = silo.one.ledger.charges()["run"].mu_squared
    silo.close()
    assert not silo.answers, f"{silo.most()} answers at one address, charged {charged}"


# Lower charges


def test_a_run_whose_rows_were_moved_is_not_closed_for_less(silo):
    """The run is closed as by `fedcore budget close`, without an approval before."""
    change(silo.path, "UPDATE entries SET run = 'elsewhere' WHERE kind = 'release' AND round < 5")
    charged = []
    try:
        ledger = SqliteLedger("ash", silo.path, silo.anchor)
        ledger.close_run("run", worst_mu_squared(row.event for row in ledger.rows("run")))
        charged = [ledger.charges()["run"].mu_squared]
        ledger.close()
    except SiloError as error:
        silo.refusals.append(error)
        ledger.close()
    assert all(mu_squared >= silo.spent() * (1 - 1e-9) for mu_squared in charged)
    assert silo.refusals[-1].code == "ledger-damaged"


def test_a_ledger_that_was_deleted_is_reconciled_with_what_its_anchor_knew(silo):
    silo.path.unlink()
    ledger = SqliteLedger("ash", silo.path, silo.anchor, fitting=False)
    _, lost = ledger.reconcile()
    ledger.close()
    assert lost.mu_squared >= silo.spent() * (1 - 1e-9)
    assert silo.faults() == []


def test_a_key_without_anchor_begins_no_new_ledger(silo):
    silo.path.unlink()
    silo.anchor.unlink()
    silo.open()
    silo.ask(*range(1, ROUNDS + 1), model=1.0)
    assert silo.most() == 1 and silo.refusals[0].code == "ledger-damaged" and "anchor" in silo.refusals[0].sentence
    with pytest.raises(SiloError, match="is gone although there is a key"):
        SqliteLedger("ash", silo.path, silo.anchor, fitting=False)
    silo.anchor.write_bytes(bytes(1024))
    silo.open()
    assert silo.refusals[-1].code == "ledger-damaged" and silo.faults()


def test_swapped_ledgers_are_told_apart(silo, tmp_path, kind):
    """Two versions of a silo's data swap ledgers, anchors and keys: each is whole, and in the wrong place."""
    other = Silo(tmp_path / "other version", kind)
    other.open("another run")
    other.close()
    for name in ("ash.sqlite", "ash.anchor", "ash.key"):
        shutil.move(silo.folder / name, tmp_path / name)
        shutil.move(other.folder / name, silo.folder / name)
        shutil.move(tmp_path / name, other.folder / name)
    found = [silo.faults(), other.faults()]
    silo.open()
    silo.ask(*range(1, ROUNDS + 1), model=1.0)
    other.open()
    other.close()
    assert silo.most() == 1
    for sentence in (silo.refusals[0].sentence, other.refusals[0].sentence, found[0][0], found[1][0]):
        assert "another silo or of another version" in sentence


@pytest.mark.parametrize("suffix", ["", "-wal", "-journal"])
@pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
def test_a_link_does_not_make_the_silo_write_over_its_own_anchor(silo, suffix, link):
    """The files beside the ledger are opened by name, with the silo's rights, which reach the anchor."""
    older = silo.anchor.read_bytes()
    beside = silo.path.with_name(silo.path.name + suffix)
    beside.unlink(missing_ok=True)
    getattr(beside, link)(silo.anchor)
    faults = silo.faults()
    silo.open("new")
    silo.ask(*range(1, ROUNDS + 1))
    silo.close()
    assert silo.anchor.exists() and silo.anchor.read_bytes() == older
    assert "is a link" in silo.refusals[0].sentence and "is a link" in faults[0]


# In the middle of a session


@pytest.fixture
def session(silo, tmp_path):
    """An open silo that has answered again, and a copy of its file."""
    silo.open()
    silo.ask(1)
    return silo, copy(silo.path, tmp_path / "copy")


@pytest.mark.parametrize("name", TAMPERED)
def test_no_address_is_answered_twice_when_the_file_is_replaced_in_a_session(session, name):
    silo, changed = session
    TAMPERED[name](changed)
    put(silo.path, changed)
    for model in (1.0, 2.0):
        silo.interrupted()
        silo.ask(*range(1, ROUNDS + 1), model=model)
    spent, charge = silo.spent(), None
    try:
        silo.one.site.close_run("run")
        charge = silo.one.ledger.charges()["run"].mu_squared
    except SiloError as error:
        silo.refusals.append(error)
    silo.close()
    assert silo.most() == 1 and silo.refusals
    assert charge is None or charge >= spent * (1 - 1e-9)
    assert silo.faults()  # whatever the session did not need, verify finds


def test_a_copy_is_not_opened_beside_the_ledger_that_it_was_copied_from(tmp_path, kind):
    silo = Silo(tmp_path / "version", kind)
    silo.open()
    silo.ask(1)
    put(silo.path, copy(silo.path, tmp_path / "copy"))
    second = Silo(silo.folder, kind)
    second.answers = silo.answers
    second.open()
    silo.ask(2, model=1.0)
    second.ask(2, model=2.0)
    second.close()
    silo.close()
    assert silo.most() == 1
    assert second.refusals[0].sentence.startswith(f"its ledger {silo.path} is held by another process ")


WRITTEN = {
    "deleted": "DELETE FROM entries WHERE sequence = NEW.sequence",
    "moved": "UPDATE entries SET round = 99 WHERE sequence = NEW.sequence",
    "other bytes": "UPDATE entries SET payload = zeroblob(32) WHERE sequence = NEW.sequence",
    "another one deleted": "DELETE FROM entries WHERE sequence = 3",
    "one more": f"INSERT INTO entries (sequence, {COLUMNS}) VALUES (99, 'x', '', 0, 0, x'', '', x'', NULL, x'')",
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_does_not_come_back_as_it_was_written_is_not_sent(silo, name):
    """A trigger of the connection's own, which no schema shows: as if the check of the schema had missed it."""
    silo.open("new")
    db = silo.one.ledger._connection
    db.execute("PRAGMA recursive_triggers = OFF")
    db.execute(
        f"CREATE TEMP TRIGGER planted AFTER INSERT ON entries WHEN NEW.kind = 'release' BEGIN {WRITTEN[name]}; END"
    )
    silo.ask(1)
    assert ("new", 1) not in silo.answers and silo.refusals[-1].code == "ledger-damaged"
    # It answers no further query, and does not report its charges.
    silo.ask(1, 2, model=1.0)
    assert ("new", 1) not in silo.answers and ("new", 2) not in silo.answers
    with pytest.raises(SiloError, match="did not come back as it was written"):
        silo.one.ledger.charges()
    with pytest.raises(SiloError, match="did not come back as it was written"):
        silo.one.ledger.find("run", 1, 1)


def test_a_lost_write_is_told_when_it_is_read_back(silo, monkeypatch):
    """COMMIT succeeds, but the row differs: a silo sends only bytes that it can read back."""
    silo.open("new")

    def losing(db: sqlite3.Connection, statement: str) -> None:
        if statement == "COMMIT":
            db.execute("UPDATE entries SET payload = zeroblob(32) WHERE sequence = (SELECT MAX(sequence) FROM entries)")

    silo.one.ledger._db = FaultyDisk(silo.one.ledger._connection, losing)
    silo.ask(1)
    assert ("new", 1) not in silo.answers
    assert "did not come back as it was written" in silo.refusals[-1].sentence
