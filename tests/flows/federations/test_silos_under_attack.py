"""A silo's own mishaps as processes: full disk, restored backup, edited schema, two runs at once at the cap."""

from __future__ import annotations

import json
import resource
import shutil
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from tests.flows.federations.parties import SCHEMA, Heart
from tests.patience import HANGS

pytestmark = [pytest.mark.slow, pytest.mark.minutes]
NAME, ROUNDS = "cleveland", 120


@pytest.fixture
def heart(tmp_path):
    """A federation whose only silo is one of its name."""
    found = Heart(tmp_path, names=(NAME,))
    try:
        found.carry()
        found.join(NAME)
        yield found
    finally:
        found.close()
    assert "Traceback" not in found.relay.log("relay"), "it ended while calls waited"


def home(heart: Heart) -> Path:
    return heart.silos[NAME].folder / "home"


def rows(heart: Heart, run: str = "") -> list[tuple[str, int, int]]:
    """Address of each release in the silo's ledger, of all runs whose id begins so."""
    (ledger,) = (home(heart) / "ledgers").glob(f"*/{NAME}.sqlite")
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as db:
        found = db.execute("SELECT run, phase, round FROM entries WHERE kind = 'release'").fetchall()
    assert len(set(found)) == len(found), "an address was released twice"
    return sorted(each for each in found if each[0].startswith(run))


def epsilon(heart: Heart) -> float:
    """The epsilon of the silo's account, as its operator sees it; the service has to be ended."""
    (found,) = json.loads(heart.silos[NAME].run("budget", "show", "--json"))
    return found["account"]["epsilon_charged"]  # over all that was lost, too


def wait(true, seconds: float = HANGS) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.05)


def ended(process: subprocess.Popen[str]) -> int:
    return process.wait(timeout=HANGS)


def lines(heart: Heart, found: str) -> int:
    return heart.silos[NAME].log("silo").count(found)


def test_a_disk_that_fills_up_in_a_round_loses_nothing_and_charges_once(heart):
    """The silo's write-ahead files may grow by some pages more, and its log by lines."""
    heart.serve()
    heart.config(rounds=ROUNDS)
    driver = heart.coordinator.start("run", "heart.yaml")
    wait(lambda: lines(heart, "answer of run") > 5 or driver.poll() is not None)
    silo = heart.processes[NAME]
    _, hard = resource.prlimit(silo.pid, resource.RLIMIT_FSIZE)
    largest = max(path.stat().st_size for path in home(heart).rglob("*-wal"))
    resource.prlimit(silo.pid, resource.RLIMIT_FSIZE, (largest + 40_000, hard))
    wait(lambda: driver.poll() is not None or silo.poll() is not None)
    if silo.poll() is not None:  # its numbers could not be kept; the driver waits
        assert silo.poll() == 2 and "cannot be kept" in heart.silos[NAME].log("silo").splitlines()[-1]
        assert driver.poll() is None
    else:  # its ledger could not be written; the driver ends with its sentence
        assert f"silo {NAME}" in heart.coordinator.log("run")
        resource.prlimit(silo.pid, resource.RLIMIT_FSIZE, (hard, hard))
        heart.stop(NAME)
    assert "Traceback" not in heart.silos[NAME].log("silo") + heart.coordinator.log("run")
    assert 0 < len(rows(heart)) < ROUNDS
    heart.processes.pop(NAME, None)
    heart.serve()
    if driver.poll() is not None:
        driver = heart.coordinator.start("run", "heart.yaml")
    assert ended(driver) == 0, heart.coordinator.log("run")
    heart.stop(NAME)
    assert [each[1:] for each in rows(heart)] == [(1, round) for round in range(1, ROUNDS + 1)]


def test_a_silo_restored_from_a_backup_answers_nothing_until_it_is_reconciled(heart):
    """Its whole home comes back, with ledger, anchor and numbers; the register lies elsewhere."""
    heart.serve()
    heart.config(rounds=2)
    heart.coordinator.run("run", "heart.yaml")
    heart.stop(NAME)
    shutil.copytree(home(heart), heart.root / "backup")
    heart.serve()
    heart.config(rounds=3)
    heart.coordinator.run("run", "heart.yaml")
    heart.stop(NAME)
    lost, before = len(rows(heart)), epsilon(heart)
    assert lost == 5
    shutil.rmtree(home(heart))
    shutil.copytree(heart.root / "backup", home(heart))
    for _ in range(2):
        said = heart.silos[NAME].run("silo", "serve", code=3)
        assert "older copy" in said and "reconcile" in said and len(said.splitlines()) == 1
    said = heart.silos[NAME].run("budget", "reconcile", NAME)
    assert NAME in said
    assert epsilon(heart) >= before, "what was lost is charged"
    heart.serve()
    heart.config(rounds=4)
    heart.coordinator.run("run", "heart.yaml")
    heart.stop(NAME)
    assert len(rows(heart)) == 2 + 4 and epsilon(heart) > before


def test_a_schema_that_was_edited_after_the_card_is_not_served(heart):
    (schema,) = home(heart).rglob("schema.yaml")
    schema.write_text(SCHEMA.replace("[20, 90]", "[20, 91]"))
    said = heart.silos[NAME].run("silo", "serve", code=2)
    assert "schema.yaml: it was edited after the silo's card was made: features" in said
    assert "91" in said and len(said.splitlines()) == 1
    schema.write_text(SCHEMA)
    heart.serve()
    heart.config(rounds=2)
    heart.coordinator.run("run", "heart.yaml")
    heart.stop(NAME)
    assert len(rows(heart)) == 2


def test_two_runs_at_once_at_the_cap_are_one_run_and_one_sentence(heart):
    policy = home(heart) / "policies" / f"{NAME}.yaml"
    values = yaml.safe_load(policy.read_text())
    values["cap"]["epsilon"] = 2.5  # each run has 2.0
    policy.write_text(yaml.safe_dump(values))
    heart.serve()
    heart.config(rounds=20)
    text = (heart.coordinator.folder / "heart.yaml").read_text()
    drivers = []
    for each in ("first", "second"):
        (heart.coordinator.folder / f"{each}.yaml").write_text(text.replace("name: heart", f"name: {each}"))
        drivers.append(heart.coordinator.start("run", f"{each}.yaml"))
    codes = [ended(each) for each in drivers]
    said = heart.coordinator.log("run")
    assert sorted(codes) == [0, 3], said
    assert f"silo {NAME}" in said and "cap" in said and "Traceback" not in said
    heart.stop(NAME)
    winner = ("first", "second")[codes.index(0)]
    assert len(rows(heart)) == len(rows(heart, f"{winner}-")) == 20
    assert epsilon(heart) <= 2.5
