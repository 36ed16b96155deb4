"""Output of the command line for a ledger that was restored, locked, or full, and for a silo that fails."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import yaml

from fedcore.experiment.identity import run_id
from fedcore.experiment.loading import load_experiment
from tasks.run_file import read_done
from tests.faults.federation import Federation
from tests.faults.quoting import CANARY_TEXT
from tests.patience import HANGS

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.minutes]
QUIET = {"cluster": {"backend": "in-process"}, "tracking": {"mlflow": False}}
DURABLE = {"epsilon": 4, "ledger": "sqlite"}


def killed_at(federation: Federation, count: int, *command: str) -> None:
    process = federation.start(*command)
    federation.wait_for_rounds(process, count)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=HANGS)


def ledger_files(home: Path, silo: str) -> set[Path]:
    """Of all data sets of this home, which other tests have used."""
    return set((home / "ledgers").glob(f"*/{silo}.sqlite*"))


def test_a_restored_backup_stops_the_run_until_it_is_reconciled_and_another_repetition_goes(home, tmp_path):
    federation = Federation.make(home, "restored", phases=[160, 20, 10], seed=31, privacy=DURABLE, **QUIET)
    others = ledger_files(home, "silo-003")
    killed_at(federation, 10, "run", str(federation.config))
    files = ledger_files(home, "silo-003") - others
    (version,) = {path.parent for path in files}
    for path in files:
        shutil.copy(path, tmp_path / path.name)
    killed_at(federation, read_done(federation.store) + 30, "resume", federation.run)
    for path in ledger_files(home, "silo-003") - others:
        path.unlink()
    for path in tmp_path.glob("silo-003.sqlite*"):
        shutil.copy(path, version / path.name)

    for command in (("run", str(federation.config)), ("resume", federation.run)):
        err = federation.call(*command, code=3)
        assert "silo silo-003: its ledger ends at entry " in err and "it lost its end or is an old copy" in err
        assert "nothing is answered until `fedcore budget reconcile silo-003` has charged what was open" in err
        assert "Traceback" not in err
    assert federation.state() == "FAILED"

    assert f"closed in full: {federation.run}" in federation.call("budget", "reconcile", "silo-003")
    err = federation.call("run", str(federation.config), code=3)
    assert f"silo silo-003: run {federation.run} is closed in its ledger" in err
    assert "another `repetition` makes a new run" in err and "Traceback" not in err
    federation.call("budget", "verify")
    result = json.loads(federation.call("run", str(federation.config), "repetition=1", "--json"))
    assert result["run"] != federation.run
    assert {silo["releases"] for silo in result["silos"]} == {190}
    accounts = json.loads(federation.call("budget", "show", "silo-003", "--json"))  # of other tests' federations, too
    (account,) = [each for each in accounts if federation.run in {run["run"] for run in each["runs"]}]
    # The partly lost run is charged in full, as if all its addresses had been answered.
    assert [run["epsilon_charged"] for run in account["runs"]] == pytest.approx([4, 4], rel=1e-6)


def test_a_cap_that_a_sweep_reaches_stops_one_cell_and_leaves_the_others_usable(home, tmp_path):
    """Squares of mu add: 1, 1.5 and 0.3 come to less than 2.2, and with 2 among them to more."""
    sweep = {
        "name": "capped",
        "base": {
            "data": {"source": "synthetic", "silos": 2, "records": 40, "features": 4, "test_records": 50},
            "seed": 32,
            "privacy": {"epsilon": 1, "delta": 1e-5, "ledger": "sqlite", "cap": {"epsilon": 2.2, "delta": 1e-5}},
            "algorithm": {"name": "mbsgd", "rounds": 3},
            **QUIET,
        },
        "grid": {"privacy.epsilon": [1, 1.5, 2, 0.3]},
    }
    config = tmp_path / "capped.yaml"
    config.write_text(yaml.safe_dump(sweep))
    federation = Federation(home, config, tmp_path / "log")
    err = federation.call("sweep", str(config), code=3)
    assert "; 1 of 4 cells of sweep capped-" in err and "Traceback" not in err
    assert "silo silo-000: " in err and "its cap of epsilon 2.2 at delta 1e-05 (gdp) has " in err
    assert "left (runs so far: 2); run " in err and "asks for 2 at delta 1e-05" in err

    name = next(path.name for path in (home / "sweeps").iterdir() if path.name.startswith("capped-"))
    report = json.loads(federation.call("report", name, "--json"))
    assert [result["epsilon_target"] for result in report["results"]] == [1, 1.5, 0.3]
    listed = [run for run in json.loads(federation.call("runs", "--json")) if run["sweep"] == name]
    assert sorted(run["state"] for run in listed) == ["FAILED", "FINISHED", "FINISHED", "FINISHED"]
    (failed,) = [run for run in listed if run["state"] == "FAILED"]
    assert "its cap of epsilon 2.2" in failed["message"]
    assert federation.log.read_text().count(f" {failed['run']} ") == 0  # no silo began an answer for it

    # A higher cap is the silo's to give, and is no part of a run's identity: only the cell that is missing is run.
    sweep["base"]["privacy"]["cap"]["epsilon"] = 9
    config.write_text(yaml.safe_dump(sweep))
    before = federation.log.read_text()
    outcome = json.loads(federation.call("sweep", str(config), "--json"))
    assert [result["epsilon_target"] for result in outcome["results"]] == [1, 1.5, 2, 0.3]
    assert [r for r in outcome["results"] if r["epsilon_target"] != 2] == report["results"]
    added = federation.log.read_text().removeprefix(before).splitlines()
    assert {line.split()[2] for line in added} == {failed["run"]}


def test_silos_that_another_run_holds_are_named_and_that_run_goes_on(home):
    federation = Federation.make(home, "holding", phases=[4000, 20, 10], seed=33, privacy=DURABLE, **QUIET)
    process = federation.start("run", str(federation.config))
    federation.wait_for_rounds(process, 3)
    process.send_signal(signal.SIGSTOP)  # so that it holds its silos however long the other takes to start
    err = federation.call("run", str(federation.config), "repetition=1", code=3)
    process.send_signal(signal.SIGCONT)
    assert "silo silo-000: its ledger " in err and "is held by another process" in err and "Traceback" not in err
    done = read_done(federation.store)
    federation.wait_for_rounds(process, done + 3)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=HANGS)
    other = run_id(load_experiment(federation.config, ["repetition=1"]))
    states = {run["run"]: run["state"] for run in json.loads(federation.call("runs", "--json"))}
    assert (states[federation.run], states[other]) == ("KILLED", "FAILED")


@pytest.mark.parametrize("ledger", [pytest.param("memory", marks=pytest.mark.hours), "sqlite"])
def test_an_error_that_quotes_a_record_at_a_worker_is_nowhere_in_the_home(tmp_path, monkeypatch, ledger):
    preload = str(Path(__file__).with_name("quoting.py"))
    monkeypatch.setenv("DASK_DISTRIBUTED__WORKER__PRELOAD", repr([preload]))
    federation = Federation.make(tmp_path / "home", "quoting", privacy={"epsilon": 4, "ledger": ledger})
    process = federation.start("run", str(federation.config))
    out, err = process.communicate(timeout=HANGS)
    assert process.returncode == 3, (out, err)
    assert "silo silo-000: it could not answer; see the log at the silo" in err
    assert CANARY_TEXT not in out + err and "Traceback" not in out + err
    files = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert len(files) > 10
    assert [path for path in files if CANARY_TEXT.encode() in path.read_bytes()] == []
