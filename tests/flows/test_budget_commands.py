"""`fedcore budget` on ledgers that a plain loop wrote."""

from __future__ import annotations

import json
import math
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedcore.errors import InputError, SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.federation.rounds import rounds
from fedcore.home import Home
from flows.commands.accounts.budget import app
from tests.gaussian_curve import delta_by_hand, epsilon_by_hand, mu_by_hand


def experiment(home: Home, **sections: object) -> Experiment:
    values = {
        "data": {"source": "synthetic", "silos": 2, "records": 40, "features": 3, "test_records": 9},
        "privacy": {"epsilon": 2, "delta": 1e-5, "ledger": "sqlite"},
        "algorithm": {"name": "mbsgd", "rounds": 6},
        **sections,
    }
    return Experiment.prepare(ExperimentConfig.model_validate(values), home.silos)


def play(home: Home, made: Experiment, count: int) -> None:
    backend = made.in_process(home.ledger_folders)
    try:
        backend.open()
    except SiloError:
        backend.close()
        raise
    loop = rounds(made.context, made.config.algorithm.init(made.start()), backend.ask)
    try:
        for _ in range(count):
            next(loop)
    finally:
        backend.close()


def shown(*arguments: str) -> list[dict]:
    return json.loads(CliRunner().invoke(app, ["show", *arguments, "--json"], catch_exceptions=False).output)


@pytest.fixture
def home(tmp_path, monkeypatch) -> Home:
    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path / "home"))
    return Home.current().make()


def test_charges_are_full_plans_and_spendings_are_releases(home):
    with pytest.raises(InputError, match="holds no durable ledger"):
        CliRunner().invoke(app, ["show"], catch_exceptions=False)
    play(home, experiment(home), 6)
    play(home, experiment(home, repetition=1), 3)
    accounts = shown()
    assert [account["silo"] for account in accounts] == ["silo-000", "silo-001"]
    for account in accounts:
        assert [run["releases"] for run in account["runs"]] == [6, 3]
        assert [[(p["phase"], p["rounds"]) for p in run["phases"]] for run in account["runs"]] == [
            [(1, [1, 2, 3, 4, 5, 6])],
            [(1, [1, 2, 3])],
        ]
        assert [run["epsilon_charged"] for run in account["runs"]] == pytest.approx([2, 2], rel=1e-9)
        # By hand: mu of one run from its epsilon; twice for the charge, one and a half times for the releases.
        mu = mu_by_hand(2.0, 1e-5)
        assert delta_by_hand(mu * math.sqrt(2), account["epsilon_charged"]) == pytest.approx(1e-5, rel=1e-6)
        assert delta_by_hand(mu * math.sqrt(1.5), account["epsilon_spent"]) == pytest.approx(1e-5, rel=1e-6)
        # All records replaced: n times the mu of one.
        events = [event for run in exported(account["silo"]) for event in run["releases"]]
        (n,) = {event["stop"] - event["start"] for event in events}
        whole = n * mu * math.sqrt(1.5)
        assert account["epsilon_whole_silo"] == pytest.approx(epsilon_by_hand(whole, 1e-5), rel=1e-6)
    assert [account["silo"] for account in shown("silo-001")] == ["silo-001"]
    table = CliRunner().invoke(app, ["show"], catch_exceptions=False).output
    assert "silo-000" in table and "charged" in table
    assert "1-6" in CliRunner().invoke(app, ["show", "silo-001"], catch_exceptions=False).output


def test_a_ledger_that_a_run_holds_is_named(home, impatient):
    made = experiment(home)
    backend = made.in_process(home.ledger_folders)
    backend.open()
    with pytest.raises(SiloError, match="is held by another process"):
        CliRunner().invoke(app, ["show"], catch_exceptions=False)
    backend.close()


def exported(silo: str) -> list[dict]:
    return json.loads(invoke("export", silo).output)[0]["runs"]


def invoke(*arguments: str):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def test_a_third_party_accounts_an_export_to_the_same_epsilon(home, tmp_path):
    """The script imports dp-accounting and no module of fedcore."""
    play(home, experiment(home), 6)
    play(home, experiment(home, repetition=1), 3)
    script = Path(__file__).parents[2] / "docs" / "scripts" / "account_export.py"
    assert "import fedcore" not in script.read_text() and "from fedcore" not in script.read_text()
    theirs = accounted_by_a_third_party(invoke("export").output)
    for account in shown():
        assert theirs[account["silo"]] == pytest.approx(account["epsilon_spent"], rel=2e-3)


def accounted_by_a_third_party(export: str) -> dict[str, float]:
    script = Path(__file__).parents[2] / "docs" / "scripts" / "account_export.py"
    done = subprocess.run([sys.executable, str(script)], input=export, capture_output=True, text=True, check=True)
    return {line.split()[0]: float(line.split()[1]) for line in done.stdout.splitlines()}


@pytest.mark.minutes
def test_runs_of_secret_samples_are_shown_verified_exported_and_closed(home):
    """Phases of samples and of full batches. One run is shown exactly; several by a bound that is never below."""
    values = {"name": "localized-mbsgd", "rounds": 4, "max_phases": 3, "batch": 6}
    made = experiment(home, algorithm=values)
    play(home, made, 10)
    for account in shown():
        assert account["epsilon_charged"] == pytest.approx(2, rel=1e-3) and account["epsilon_charged"] <= 2
        (run,) = account["runs"]
        assert account["epsilon_spent"] == run["epsilon_spent"] <= run["epsilon_charged"]
        assert [phase["rounds"] for phase in run["phases"]] == [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2]]
        # Silos answered two phases completely, by samples of 6 of 20 and of 10 records; that of full batches not.
        assert all(2 * 0.999 < phase["epsilon_spent"] <= 2 for phase in run["phases"][:2])
        assert run["phases"][2]["epsilon_spent"] < 1.6
    first = json.loads(invoke("export", "silo-000").output)[0]["runs"][0]["releases"]
    assert [(r["sampling"], r["rate"]) for r in first[::4]] == [("poisson", 0.3), ("poisson", 0.6), ("full", 1.0)]
    theirs = accounted_by_a_third_party(invoke("export").output)
    for account in shown():
        assert theirs[account["silo"]] == pytest.approx(account["epsilon_spent"], rel=3e-3)
    assert [each["faults"] for each in json.loads(invoke("verify", "--json").output)] == [[], []]
    assert "is closed at 2 silos" in invoke("close", made.run).output
    again = experiment(home, algorithm={"name": "mbsgd", "rounds": 4, "batch": 6}, repetition=1)
    play(home, again, 4)
    theirs = accounted_by_a_third_party(invoke("export").output)
    for account in shown():
        assert [run["state"] for run in account["runs"]] == ["closed", "open"]
        assert 2 < theirs[account["silo"]] < account["epsilon_spent"] <= account["epsilon_charged"]
        assert account["epsilon_whole_silo"] is None
    assert [each["faults"] for each in json.loads(invoke("verify", "--json").output)] == [[], []]


def test_a_cap_of_samples_goes_further_by_basic_composition(home):
    """`gdp` charges a sample like a full batch, `basic` the plan's epsilon: two runs of 2 fit into 4.1."""
    values = {"name": "mbsgd", "rounds": 6, "batch": 4}
    for rule, admitted in (("basic", 2), ("gdp", 0)):
        privacy = {"epsilon": 2, "delta": 1e-5, "ledger": "sqlite"}
        privacy["cap"] = {"epsilon": 4.1, "delta": 2.5e-5, "rule": rule}
        data = {"source": "synthetic", "silos": 2, "records": 40, "features": 3 + (rule == "gdp"), "test_records": 9}
        for repetition in range(3):
            made = experiment(home, algorithm=values, privacy=privacy, data=data, repetition=repetition)
            if repetition < admitted:
                play(home, made, 6)
                continue
            with pytest.raises(SiloError, match=r"cap of epsilon 4\.1"):
                play(home, made, 1)


def test_an_export_shows_addresses_and_events_and_no_value(home):
    play(home, experiment(home), 2)
    first = json.loads(invoke("export", "silo-000").output)[0]["runs"][0]
    assert first["state"] == "open" and [(r["phase"], r["round"]) for r in first["releases"]] == [(1, 1), (1, 2)]
    assert set(first["releases"][0]) == {
        "phase",
        "round",
        "start",
        "stop",
        "sensitivity",
        "sigma",
        "count",
        "mechanism",
        "adjacency",
        "sampling",
        "rate",
        "query_sha256",
        "payload_sha256",
    }


def test_verify_names_the_ledger_that_is_not_whole(home):
    play(home, experiment(home), 2)
    clean = invoke("verify")
    assert clean.exit_code == 0 and clean.output.count("whole") == 2
    (path,) = home.ledgers.glob("*/silo-001.sqlite")
    db = sqlite3.connect(path)
    db.execute("UPDATE entries SET round = 7 WHERE sequence = 4")
    db.commit()
    db.close()
    verified = invoke("verify", "--json")
    assert verified.exit_code == 1
    faults = {each["silo"]: each["faults"] for each in json.loads(verified.output)}
    assert faults == {"silo-000": [], "silo-001": ["entry 4 was changed, or is not where it was written"]}


def test_close_gives_back_and_ends_a_run(home):
    made = experiment(home)
    play(home, made, 3)
    with pytest.raises(InputError, match="no ledger here has an open run other"):
        invoke("close", "other")
    before = shown()[0]["runs"][0]
    assert before["state"] == "open" and before["epsilon_spent"] < before["epsilon_charged"]
    assert "is closed at 2 silos: silo-000, silo-001" in invoke("close", made.run).output
    assert shown()[0]["epsilon_whole_silo"] > shown()[0]["epsilon_spent"]
    after = shown()[0]["runs"][0]
    assert after["state"] == "closed" and after["epsilon_charged"] == before["epsilon_spent"] == after["epsilon_spent"]
    with pytest.raises(SiloError, match="is closed in its ledger and gets no new answer"):
        play(home, made, 4)
    play(home, made, 3)  # committed answers are sent again


def test_what_was_lost_with_all_approvals_is_shown_as_charged(home):
    """Two runs of epsilon 2 each, and a deleted ledger: the anchor has their charges."""
    play(home, experiment(home), 6)
    play(home, experiment(home, repetition=1), 3)
    before = shown("silo-000")[0]["epsilon_charged"]
    (path,) = home.ledgers.glob("*/silo-000.sqlite")
    path.unlink()
    assert "charged as lost" in invoke("reconcile", "silo-000").output
    after = shown("silo-000")[0]
    assert after["runs"] == [] and len(after["lost"]) == 1
    assert after["epsilon_charged"] == pytest.approx(before, rel=1e-9) and after["delta"] == pytest.approx(1e-5)
    assert after["epsilon_spent"] == 0.0 and after["epsilon_whole_silo"] is None


def test_reconcile_after_a_restored_copy(home):
    made = experiment(home)
    play(home, made, 2)
    (path,) = home.ledgers.glob("*/silo-000.sqlite")
    copy = path.read_bytes()
    with pytest.raises(InputError, match="nothing to reconcile"):
        invoke("reconcile", "silo-000")
    play(home, made, 3)
    path.write_bytes(copy)
    with pytest.raises(SiloError, match="fedcore budget reconcile silo-000"):
        play(home, made, 4)
    assert "closed in full: " + made.run in invoke("reconcile", "silo-000").output
    assert invoke("verify").exit_code == 0
    account = shown("silo-000")[0]
    assert account["runs"][0]["state"] == "closed" and account["epsilon_charged"] == pytest.approx(2, rel=1e-9)
    assert account["epsilon_whole_silo"] is None  # the number of records in lost answers is unknown
    with pytest.raises(SiloError, match="is closed"):
        play(home, made, 4)
