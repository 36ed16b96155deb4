"""Sampling runs under an operator's cap, by the command line: silos admit the number of runs that `plan` shows."""

from __future__ import annotations

import json

import pytest
import typer
import yaml
from typer.testing import CliRunner

from fedcore.accounting.filters import Cap
from fedcore.errors import SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.home import Home
from flows.commands.accounts.budget import app
from flows.commands.plan import plan
from flows.schedules.adds import capped_firings
from tests.policies import write_policy
from tests.registers import registered

CAP = {"epsilon": 2.0, "delta": 1e-5}


def values(**privacy: object) -> dict:
    return {
        "data": {"source": "synthetic", "silos": 2, "records": 1000, "features": 3, "test_records": 9},
        "privacy": {"epsilon": 1.0, "delta": 1e-5, "ledger": "sqlite", "noise": "guarded", **privacy},
        "algorithm": {"name": "mbsgd", "rounds": 100, "batch": 100},
        "tracking": {"mlflow": False},
    }


@pytest.fixture
def home(tmp_path, monkeypatch) -> Home:
    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path / "home"))
    return Home.current().make()


def admitted(home: Home) -> tuple[int, str]:
    """Number of repetitions that silos with ledgers approve, and the sentence of the first refusal."""
    for repetition in range(20):
        made = Experiment.prepare(ExperimentConfig.model_validate(values() | {"repetition": repetition}), home.silos)
        if repetition == 0:
            registered(made, home.ledger_folders)
        backend = made.in_process(home.ledger_folders)
        try:
            backend.open()
        except SiloError as error:
            return repetition, error.sentence
        finally:
            backend.close()
    raise AssertionError("no cap ended it")


def planned(tmp_path, rule: str) -> dict:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(values(cap=CAP | {"rule": rule})))
    command = typer.Typer()
    command.command()(plan)
    return json.loads(CliRunner().invoke(command, [str(config), "--json"], catch_exceptions=False).output)


def test_rdp_admits_the_planned_number_and_budget_shows_the_order(home, policies, tmp_path):
    """As in the spec, room / cost at the order of (2, 1e-5) is 3.01 runs of epsilon 1; gdp admits none."""
    write_policy(policies, cap=CAP | {"rule": "rdp"})
    count, refusal = admitted(home)
    assert count == 3 and "its policy allows cap.epsilon = 2 over all runs" in refusal
    config = ExperimentConfig.model_validate(values(cap=CAP | {"rule": "rdp"}))
    assert capped_firings([config]) == 3
    line = "cap: epsilon 2 over all runs of a silo (rdp) takes 3 runs of this plan where there was none before."
    assert planned(tmp_path, "rdp")["runs_admitted"] == [line]
    shown = CliRunner().invoke(app, ["show", "silo-000"], catch_exceptions=False).output
    assert f"Renyi order {Cap(2.0, 1e-5).order:.8g}, implied by the first one, for life" in shown
    assert "claimed: epsilon 2 at delta 1e-05, the largest cap ever in force" in shown
    (account,) = json.loads(CliRunner().invoke(app, ["show", "silo-000", "--json"], catch_exceptions=False).output)
    caps = account["account"]["caps"]
    assert caps["recorded"][0]["caps"] == [CAP | {"rule": "rdp"}] and len(account["runs"]) == 3
    # The charged epsilon counts a sample as all records.
    assert caps["in_force"][0]["spent"] <= 2 < account["epsilon_charged"]
    (exported,) = json.loads(CliRunner().invoke(app, ["export", "silo-000"], catch_exceptions=False).output)
    charge = exported["runs"][0]["charge"]
    assert charge["order"] == caps["order"] and charge["pieces"][0][1][0][:2] == ["poisson", 0.1]
    assert charge["rho"] * 3 == pytest.approx(caps["divergence"])


def test_gdp_refuses_and_names_rdp(home, policies, tmp_path):
    write_policy(policies, cap=CAP)
    count, refusal = admitted(home)
    assert count == 0
    assert refusal.endswith("; gdp counts a sample as all records, rule rdp counts it as a sample, and has room for it")
    (line,) = planned(tmp_path, "gdp")["runs_admitted"]
    assert line == (
        "cap: epsilon 2 over all runs of a silo (gdp) takes 0 runs of this plan where there was none before; gdp "
        "counts a sample as all records, rule rdp counts it as a sample and takes 3."
    )
