"""Ledgers of older versions, written here in their formats: charges stay, and their runs cannot continue."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Cap, Charge
from fedcore.accounting.gaussian import epsilon_of
from fedcore.errors import InputError, SiloError
from fedcore.home import LedgerFolders
from fedcore.ledger import migration
from fedcore.ledger.ledger import Row, payload_digest
from fedcore.ledger.migration import migrate, older_runs
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.ledger.storage.verify import faults
from flows.commands.accounts.budget import app

DELTA = 1e-6
CHARGES = {"first": (0.25, 1.0, DELTA), "second": (0.5, 2.0, 2e-6)}
EVENT = GaussianRelease(0, 20, 0.1, 1.0)
RELEASES = """CREATE TABLE releases (
    id INTEGER PRIMARY KEY, run TEXT NOT NULL REFERENCES runs, phase INTEGER NOT NULL, round INTEGER NOT NULL,
    query_digest BLOB NOT NULL, start INTEGER NOT NULL, stop INTEGER NOT NULL, sensitivity REAL NOT NULL,
    sigma REAL NOT NULL, payload_digest BLOB NOT NULL, payload BLOB NOT NULL, UNIQUE (run, phase, round));"""
RUNS = {
    1: "CREATE TABLE runs (run TEXT PRIMARY KEY, plan TEXT NOT NULL, key BLOB NOT NULL);",
    2: "CREATE TABLE runs (run TEXT PRIMARY KEY, plan TEXT NOT NULL, key BLOB NOT NULL, mu_squared REAL NOT NULL, "
    "epsilon REAL NOT NULL, delta REAL NOT NULL);",
}


def write(path, version=2, releases=5):
    """Two runs; the first has releases in the given number of rounds, the second in none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        recorded = version if version > 1 else 0
        db.executescript(f"BEGIN;{RUNS[version]}{RELEASES}PRAGMA user_version = {recorded};COMMIT;")
        for run, charge in CHARGES.items():
            values = (run, f"plan of {run}", b"k" * 32, *(charge if version == 2 else ()))
            db.execute(f"INSERT INTO runs VALUES ({', '.join('?' * len(values))})", values)
        for round in range(1, releases + 1):
            payload = np.full(3, float(round)).tobytes()
            db.execute(
                "INSERT INTO releases (run, phase, round, query_digest, start, stop, sensitivity, sigma, "
                "payload_digest, payload) VALUES (?, 1, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    "first",
                    round,
                    b"q%d" % round,
                    EVENT.start,
                    EVENT.stop,
                    EVENT.sensitivity,
                    EVENT.sigma,
                    hashlib.sha256(payload).digest(),
                    payload,
                ),
            )


@pytest.fixture
def places(tmp_path):
    return LedgerFolders.below(tmp_path).of("version", "ash")


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_charges_are_carried_over_and_runs_are_closed_in_full(places):
    write(places[0])
    with pytest.raises(SiloError, match="has version 2, this code needs 4: `fedcore budget migrate ash`"):
        SqliteLedger("ash", *places)
    runs = migrate("ash", *places)
    assert [(each.run, each.releases) for each in runs] == [("first", 5), ("second", 0)]
    ledger = SqliteLedger("ash", *places)
    assert ledger.charges() == {run: Charge(*charge) for run, charge in CHARGES.items()}
    assert ledger.runs == 2 and all(ledger.is_closed(run) for run in CHARGES)
    # Neither an old address nor a new one is answered, and no other plan takes the place of an old run.
    payload, digested = payload_digest(np.zeros(3))
    row = Row(1, 1, b"q" * 32, EVENT, digested, payload)
    assert ledger.find("first", 1, 1) is None
    with pytest.raises(SiloError, match="is closed in its ledger"):
        ledger.commit("first", row)
    with pytest.raises(SiloError, match="approved with plan"):
        ledger.open_run("first", "another plan", b"k" * 32, Charge(1e-9, 1e-3, DELTA), None)
    # A cap counts what was spent: 0.75 of mu^2 leaves too little of mu = 0.9 for half as much again.
    cap = Cap(epsilon_of(0.9, DELTA), DELTA)
    with pytest.raises(SiloError, match="its cap of epsilon"):
        ledger.open_run("third", "plan", b"k" * 32, Charge(0.1, 1.0, DELTA), cap)
    ledger.open_run("third", "plan", b"k" * 32, Charge(0.05, 0.5, DELTA), cap)
    ledger.close()
    assert faults("ash", *places) == []
    assert not (places[0].parent / ".migration").exists()
    backup = places[0].with_name("ash.sqlite.version-2")
    assert [run.charge for run in older_runs(backup)] == [Charge(*charge) for charge in CHARGES.values()]


def test_version_1_is_charged_what_it_released_at_the_delta_that_is_named(places):
    write(places[0], version=1, releases=7)
    with pytest.raises(InputError, match="version 1 needs a delta"):
        migrate("ash", *places)
    runs = migrate("ash", *places, delta=DELTA)
    spent = 7 * (EVENT.sensitivity / EVENT.sigma) ** 2
    assert runs[0].charge.mu_squared == pytest.approx(spent, rel=1e-12)
    assert runs[0].charge.epsilon == pytest.approx(epsilon_of(spent**0.5, DELTA), rel=1e-12)
    assert runs[1].charge == Charge(0.0, 0.0, DELTA)
    assert faults("ash", *places) == []


@pytest.mark.parametrize(
    "statement, message",
    [
        ("UPDATE releases SET payload = x'00' WHERE round = 3", "the bytes of round 1.3 of run first are not those"),
        ("UPDATE runs SET mu_squared = 0.01 WHERE run = 'first'", "run first released more than it was charged for"),
        ("DELETE FROM runs WHERE run = 'first'", "has 5 releases of runs that it does not know"),
        ("ALTER TABLE runs ADD COLUMN more TEXT", "its table runs is another one"),
        ("PRAGMA user_version = 9", "has version 9: 1 and 2 can be migrated"),
        ("PRAGMA user_version = 3", "has version 3: 1 and 2 can be migrated"),
    ],
)
def test_what_does_not_fit_is_refused_and_left_as_it_was(places, statement, message):
    write(places[0])
    with closing(sqlite3.connect(places[0], isolation_level=None)) as db:
        db.execute(statement)
    before = contents(places[0].parent)
    with pytest.raises(InputError, match=message):
        migrate("ash", *places)
    assert contents(places[0].parent) == before


@pytest.mark.parametrize("what", ["nothing", "text", "half", "link"])
def test_a_file_that_is_no_ledger_is_refused(places, tmp_path, what):
    if what != "nothing":
        write(places[0])
    if what == "text":
        places[0].write_text("no database")
    elif what == "half":
        places[0].write_bytes(places[0].read_bytes()[: places[0].stat().st_size // 2])
    elif what == "link":
        places[0].rename(tmp_path / "elsewhere")
        places[0].symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError):
        migrate("ash", *places)


def test_a_crash_at_any_step_leaves_the_older_ledger_or_the_new_one(places, monkeypatch):
    """The steps that move files, one after the other: each is the last one of an attempt, then it is done again."""
    steps = ["link", "replace", "replace", "replace"]
    for last in range(len(steps)):
        folder = places[0].parents[2] / str(last)
        here = LedgerFolders.below(folder).of("version", "ash")
        write(here[0])
        done = []

        def counted(name, real, done=done, last=last):
            def act(*arguments):
                if ".migration" in str(arguments[0]) or name == "link":
                    if len(done) == last:
                        raise OSError(5, "planted")
                    done.append(name)
                return real(*arguments)

            return act

        with monkeypatch.context() as patch:
            for name in ("link", "replace"):
                patch.setattr(migration.os, name, counted(name, getattr(os, name)))
            with pytest.raises((SiloError, OSError)):
                migrate("ash", *here)
        with pytest.raises(SiloError, match="budget migrate"):
            SqliteLedger("ash", *here)
        migrate("ash", *here)
        ledger = SqliteLedger("ash", *here)
        assert ledger.charges() == {run: Charge(*charge) for run, charge in CHARGES.items()}
        ledger.close()
        assert faults("ash", *here) == []


def test_a_ledger_that_is_held_is_not_migrated(places, impatient):
    from fedcore.ledger import file_lock

    write(places[0])
    held = file_lock.hold("ash", *places)
    try:
        with pytest.raises(SiloError, match="is held by another process"):
            migrate("ash", *places)
    finally:
        os.close(held)


def test_the_command_says_what_it_did(places, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path))
    write(places[0])
    done = CliRunner().invoke(app, ["migrate", "ash"], catch_exceptions=False)
    assert "silo ash: 2 runs closed in full, mu^2 0.75 in all" in done.output
    with pytest.raises(InputError, match="its ledger has version 4 already"):
        CliRunner().invoke(app, ["migrate", "ash"], catch_exceptions=False)
    shown = CliRunner().invoke(app, ["show", "ash", "--json"], catch_exceptions=False)
    assert '"second"' in shown.output


def test_releases_on_other_positions_are_charged_apart(places):
    """Version 1 on two pieces: the larger sum of the two, by hand."""
    write(places[0], version=1, releases=4)
    with closing(sqlite3.connect(places[0], isolation_level=None)) as db:
        db.execute("UPDATE releases SET start = 20, stop = 40 WHERE round = 4")
    other = replace(EVENT, start=20, stop=40)
    assert older_runs(places[0], DELTA)[0].charge.mu_squared == pytest.approx(3 * other.gdp_mu_squared, rel=1e-12)
