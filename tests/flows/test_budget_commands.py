"""`fedcore budget show` on ledgers that a plain loop wrote."""

from __future__ import annotations

import json
import math

import pytest
from scipy.stats import norm
from typer.testing import CliRunner

from fedcore.config import ExperimentConfig
from fedcore.errors import InputError, SiloError
from fedcore.experiment import Experiment
from fedcore.home import Home
from fedcore.rounds import rounds
from flows.budget_commands import app


def experiment(home: Home, **sections: object) -> Experiment:
    values = {
        "data": {"source": "synthetic", "silos": 2, "records": 40, "features": 3, "test_records": 9},
        "privacy": {"epsilon": 2, "delta": 1e-5, "ledger": "sqlite"}, "algorithm": {"name": "mbsgd", "rounds": 6},
        **sections,
    }  # fmt: skip
    return Experiment.prepare(ExperimentConfig.model_validate(values), home.silos)


def play(home: Home, made: Experiment, count: int) -> None:
    backend = made.in_process(home.ledger_folders)
    backend.open()
    loop = rounds(made.course, made.config.algorithm.init(made.start()), backend.ask)
    for _ in range(count):
        next(loop)
    backend.close()


def shown(*arguments: str) -> list[dict]:
    return json.loads(CliRunner().invoke(app, ["show", *arguments, "--json"], catch_exceptions=False).output)


def delta_of(mu: float, epsilon: float) -> float:
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


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
        assert [run["rounds_by_phase"] for run in account["runs"]] == [{"1": 6}, {"1": 3}]
        assert [run["epsilon_charged"] for run in account["runs"]] == pytest.approx([2, 2], rel=1e-9)
        # By hand: mu of one run from its epsilon, twice for the charge, one and a half times for the releases.
        low, high = 0.1, 3.0
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if delta_of(middle, 2.0) < 1e-5 else (low, middle)
        assert delta_of(low * math.sqrt(2), account["epsilon_charged"]) == pytest.approx(1e-5, rel=1e-6)
        assert delta_of(low * math.sqrt(1.5), account["epsilon_spent"]) == pytest.approx(1e-5, rel=1e-6)
    assert [account["silo"] for account in shown("silo-001")] == ["silo-001"]
    table = CliRunner().invoke(app, ["show"], catch_exceptions=False).output
    assert "silo-000" in table and "charged" in table


def test_a_ledger_that_a_run_holds_is_told(home):
    made = experiment(home)
    backend = made.in_process(home.ledger_folders)
    backend.open()
    with pytest.raises(SiloError, match="is held by another process"):
        CliRunner().invoke(app, ["show"], catch_exceptions=False)
    backend.close()
