"""A federation of processes: joining, a run, a resume after kills, and what a silo's process imports."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time

import pytest

from tests.flows.federations.parties import Heart, fingerprint
from tests.patience import HANGS

pytestmark = pytest.mark.slow


@pytest.fixture
def heart(tmp_path):
    found = Heart(tmp_path)
    try:
        yield found
    finally:
        found.close()


def answers(heart: Heart, name: str) -> list[tuple[int, int]]:
    """Phase and round of each release in a silo's ledger, whose service is ended first."""
    heart.stop(name)
    (ledger,) = (heart.silos[name].folder / "home" / "ledgers").glob(f"*/{name}.sqlite")
    with sqlite3.connect(f"file:{ledger}?mode=ro", uri=True) as db:
        return db.execute("SELECT phase, round FROM entries WHERE kind = 'release' ORDER BY phase, round").fetchall()


def result(heart: Heart) -> dict:
    (found,) = (heart.coordinator.folder / "home" / "runs").glob("*/model.json")
    return json.loads(found.read_text())


def test_hospitals_train_a_model_and_each_release_is_charged_once(heart):
    heart.carry()
    for name in heart.names:
        heart.join(name)
    heart.serve()
    heart.config(rounds=6)
    said = heart.coordinator.run("run", "heart.yaml")
    assert "mbsgd" in said and result(heart)["w"]
    listed = json.loads(heart.coordinator.run("federation", "list", "heart", "--json"))
    assert [each["silo"] for each in listed["silos"]] == list(heart.names)
    assert all(each["seconds_ago"] < HANGS and each["waiting"] == 0 for each in listed["silos"])
    # The finished run is not run again, and a repetition of it is a run of its own.
    assert "finished" in heart.coordinator.run("run", "heart.yaml")
    for name in heart.names:
        assert answers(heart, name) == [(1, number) for number in range(1, 7)]
        assert "answer of run heart-" in heart.silos[name].log("silo")
    # Nothing of a record is on the coordinator's side or at the relay, in any file.
    cell = (heart.silos["cleveland"].folder / "records.csv").read_text().splitlines()[1].split(",")[0]
    for party in (heart.coordinator, heart.relay):
        for path in party.folder.rglob("*"):
            assert not path.is_file() or f'"age": {cell}' not in path.read_bytes().decode(errors="replace")


def test_a_run_goes_on_after_relay_driver_and_a_silo_were_killed(heart):
    heart.carry()
    for name in heart.names:
        heart.join(name)
    heart.serve()
    heart.config(rounds=400)
    driver = heart.coordinator.start("run", "heart.yaml")
    until = time.monotonic() + HANGS
    while heart.silos["hungary"].log("silo").count("answer of run") < 10:
        assert time.monotonic() < until and driver.poll() is None, heart.coordinator.log("run")
        time.sleep(0.05)
    heart.kill("hungary")
    heart.kill("relay")
    driver.kill()
    driver.wait(timeout=HANGS)
    heart.carry()
    heart.serve("hungary")
    heart.coordinator.run("run", "heart.yaml")
    for name in heart.names:
        assert answers(heart, name) == [(1, number) for number in range(1, 401)]


def test_joining_refuses_what_was_changed_on_its_way(heart, tmp_path):
    name = "cleveland"
    heart.join(name)
    card = heart.silos[name].folder / f"{name}.card"
    (tmp_path / "edited.card").write_text(card.read_text().replace('"records": 49', '"records": 490'))
    said = heart.coordinator.run("federation", "add", str(tmp_path / "edited.card"), code=2)
    assert "changed after it was signed" in said and "Traceback" not in said
    wrong = ("--fingerprint", "AAAAA-AAAAA-AAAAA-AAAAA-AAAAA")
    assert "other keys" in heart.coordinator.run("federation", "add", str(card), *wrong, code=2)
    assert "give --fingerprint" in heart.coordinator.run("federation", "add", str(card), code=2)
    files = ("--invitation", heart.invitation, "--data", "records.csv")
    assert "other keys" in heart.silos[name].run("silo", "init", "second", *files, *wrong, code=2)
    assert "joined a federation already" in heart.silos[name].run(
        "silo", "init", name, *files, "--fingerprint", heart.fingerprint, code=2
    )
    heart.config(rounds=2)
    said = heart.coordinator.run("run", "heart.yaml", code=2)
    assert "its relay does not serve" in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("../x", "records.csv", "is no name of a silo"),
        ("coordinator", "records.csv", "is no name of a silo"),
        ("first", "none.csv", "does not exist"),
        ("first", "records.txt", "must end in .parquet or .csv"),
    ],
)
def test_a_mistake_of_joining_is_one_sentence_and_leaves_no_keys(heart, name, data, sentence):
    party = heart.silos["cleveland"]
    (party.folder / "records.csv").write_text("age,disease\n30,0\n40,1\n")
    (party.folder / "records.txt").write_text("age,disease\n30,0\n40,1\n")
    files = ("--invitation", heart.invitation, "--data", data, "--fingerprint", heart.fingerprint)
    said = party.run("silo", "init", name, *files, code=2)
    assert sentence in said and "Traceback" not in said and len(said.splitlines()) == 1
    assert not list(party.folder.rglob("silo.keys"))


def test_a_silo_without_an_account_is_not_served(heart):
    party = heart.silos["cleveland"]
    (party.folder / "records.csv").write_text("age,disease\n30,0\n40,1\n")
    files = ("--invitation", heart.invitation, "--data", "records.csv", "--fingerprint", heart.fingerprint)
    party.run("silo", "init", "cleveland", *files)
    assert "`fedcore silo card cleveland` makes it one" in party.run("silo", "serve", code=2)


def test_a_removed_silo_is_served_no_more_and_a_run_names_it(heart):
    heart.carry()
    for name in heart.names:
        heart.join(name)
    heart.serve()
    heart.coordinator.run("federation", "remove", "heart", "hungary")
    until = time.monotonic() + HANGS
    while "not on the coordinator's list" not in heart.silos["hungary"].log("silo"):
        assert time.monotonic() < until
        time.sleep(0.1)
    config = heart.coordinator.folder / "heart.yaml"
    heart.config(rounds=2)
    config.write_text(
        config.read_text().replace("federation: heart", "federation: heart\n  silos: [cleveland, hungary]")
    )
    assert "hungary has not joined" in heart.coordinator.run("plan", "heart.yaml", code=2)


def test_a_silos_process_imports_no_engine():
    code = (
        "import flows.commands.app, flows.commands.federations.silo, fedcore.remote.membership, tasks.relay.serving, "
        "tasks.relay.client, fedcore.data.inspection, fedcore.silo.registration, sys; "
        "print([name for name in ('prefect', 'dask', 'distributed', 'mlflow') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_a_silo_rotates_its_keys_while_it_is_served(heart):
    heart.carry()
    for name in heart.names:
        heart.join(name)
    heart.serve()
    party, coordinator = heart.silos["hungary"], heart.coordinator
    before = json.loads(party.run("silo", "show", "--json"))["fingerprint"]
    after = fingerprint(party.run("silo", "rotate"))
    rotation = str(party.folder / "hungary.rotation")
    assert after != before and "is there already" in party.run("silo", "rotate", code=2)
    assert "other keys" in coordinator.run("federation", "add", rotation, "--fingerprint", before, code=2)
    assert "has new keys in heart" in coordinator.run("federation", "add", rotation, "--fingerprint", after)
    heart.config(rounds=3)
    coordinator.run("run", "heart.yaml")
    assert json.loads(party.run("silo", "show", "--json"))["fingerprint"] == after
    assert party.log("silo").count("answers for heart") == 2
    card = str(party.folder / "hungary.card")
    assert "another party is named" in coordinator.run("federation", "add", card, "--fingerprint", before, code=2)
    coordinator.run("federation", "revoke", "heart", "hungary")
    heart.stop("hungary")
    party.run("silo", "card", "-o", "again.card")
    again = str(party.folder / "again.card")
    assert "were revoked" in coordinator.run("federation", "add", again, "--fingerprint", after, code=2)
