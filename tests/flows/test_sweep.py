"""A small sweep end to end, twice: real Prefect server, MLflow on sqlite, silos in process."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from math import hypot
from pathlib import Path

import pytest
import yaml

from tests.gaussian_curve import mu_by_hand
from tests.patience import HANGS

pytestmark = pytest.mark.slow

SWEEP = {
    "name": "small",
    "base": {
        "data": {"source": "synthetic", "silos": 3, "records": 40, "features": 4, "test_records": 50},
        "algorithm": {"name": "localized-mbsgd", "rounds": [3, 2], "max_phases": 2},
        "cluster": {"backend": "in-process"},
    },
    "grid": {"privacy.epsilon": [1, 4], "seed": [0, 1]},
    "variants": [
        {},
        {"set": {"privacy.trust": "none", "algorithm": {"name": "mbsgd", "rounds": 3}}, "grid": {"seed": [0]}},
    ],
}


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("sweep") / "home"


def fedcore(home: Path, *arguments: str) -> str:
    environment = {**os.environ, "FEDCORE_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-m", "flows.commands.app", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANGS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def outcome(home, tmp_path_factory) -> dict:
    config = tmp_path_factory.mktemp("config") / "sweep.yaml"
    config.write_text(yaml.safe_dump(SWEEP))
    first = json.loads(fedcore(home, "sweep", str(config), "--json"))
    again = json.loads(fedcore(home, "sweep", str(config), "--json"))
    assert again == first
    return first


def test_every_cell_has_its_result_and_the_plot_is_there(home, outcome):
    assert outcome["cells"] == 5
    cells = {(r["method"], r["epsilon_target"], r["seed"]): r for r in outcome["results"]}
    assert set(cells) == {("localized-mbsgd", e, s) for e in (1, 4) for s in (0, 1)} | {("mbsgd", None, 0)}
    for (_, epsilon, _), result in cells.items():
        assert result["epsilon_accounted"] == (None if epsilon is None else pytest.approx(epsilon, rel=1e-9))
        assert result["trust"] == ("none" if epsilon is None else "inter-silo")
        assert "seeded simulation" in result["noise"]
    assert Path(outcome["plot"]).read_bytes().startswith(b"\x89PNG")
    table = fedcore(home, "report", outcome["sweep"])
    assert "localized-mbsgd" in table and "none" in table


def test_the_cells_costs_add_up_at_each_silo(outcome):
    delta = 1 / 40**2

    total = hypot(mu_by_hand(1, delta), mu_by_hand(4, delta))
    accounts = {(account["seed"], account["silo"]): account for account in outcome["silos"]}
    assert len(accounts) == 6
    for (seed, _), account in accounts.items():
        assert (account["cells"], account["cells_without_noise"]) == ((3, 1) if seed == 0 else (2, 0))
        assert mu_by_hand(account["epsilon_of_noised_cells"], delta) == pytest.approx(total, rel=1e-5)
        assert account["epsilon"] == (None if seed == 0 else account["epsilon_of_noised_cells"])
    assert "1 more without noise protect nothing" in outcome["statement"]


def test_prefect_shows_cells_phases_and_rounds_by_name(home, outcome):
    db = sqlite3.connect(f"file:{home / 'prefect' / 'prefect.db'}?mode=ro", uri=True)
    flows = db.execute("SELECT name, state_type, tags FROM flow_run WHERE parent_task_run_id IS NOT NULL").fetchall()
    assert len(flows) == 5
    assert {state for _, state, _ in flows} == {"COMPLETED"}
    assert "localized-mbsgd | epsilon 4 | seed 1" in {name for name, _, _ in flows}
    assert all(f'"sweep:{outcome["sweep"]}"' in tags for _, _, tags in flows)
    tasks = [name for (name,) in db.execute("SELECT name FROM task_run")]
    assert tasks.count("phase 2") == 4
    assert tasks.count("round 1.3") == 5 and tasks.count("round 2.2") == 4
    assert "run" in {name for (name,) in db.execute("SELECT name FROM flow")}


def test_mlflow_holds_a_run_per_cell_and_phase_with_budget_and_model(home, outcome):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{home / 'mlflow.db'}", f"sqlite:///{home / 'mlflow.db'}")
    experiments = [e.experiment_id for e in client.search_experiments()]
    runs = client.search_runs(experiments, "tags.`fedcore.kind` = 'experiment'")
    assert len(runs) == 5 and {run.info.status for run in runs} == {"FINISHED"}
    assert all("prefect.flow_run_url" in run.data.tags for run in runs)
    one = next(r for r in outcome["results"] if r["epsilon_target"] == 4 and r["seed"] == 1)
    parent = next(run for run in runs if run.data.tags["fedcore.run_id"] == one["run"])
    assert parent.data.metrics["test_error"] == one["test_error"]
    assert {a.path for a in client.list_artifacts(parent.info.run_id)} >= {"config.yaml", "plan.json", "ledger.json"}

    phases = client.search_runs(experiments, f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'")
    assert sorted(run.data.tags["fedcore.phase"] for run in phases) == ["1", "2"]
    for run in phases:
        params = run.data.params
        assert {"n_i", "lambda_i", "D_i", "R_i", "K_i", "sigma_i", "clip", "step", "epsilon_target"} <= set(params)
        assert params["n_i"] == {"1": "20", "2": "10"}[run.data.tags["fedcore.phase"]]
        rounds = int(params["R_i"])
        for key in ("test/error", "test/loss", "simulation/train_loss", "communication/floats_up"):
            assert len(client.get_metric_history(run.info.run_id, key)) == rounds
        models = client.search_logged_models(experiments, f"source_run_id = '{run.info.run_id}'")
        assert [str(model.status) for model in models] == ["READY"]

    rounds = [int(params["R_i"]) for params in (run.data.params for run in phases)]
    whole = client.get_metric_history(parent.info.run_id, "test/error")
    assert [point.step for point in whole] == list(range(1, sum(rounds) + 1))
    apart = [
        p.value
        for run in sorted(phases, key=lambda run: run.data.tags["fedcore.phase"])
        for p in client.get_metric_history(run.info.run_id, "test/error")
    ]
    assert [point.value for point in whole] == apart


def test_a_sweep_registers_its_best_private_cell_with_a_statement_on_the_choice(home, outcome):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{home / 'mlflow.db'}", f"sqlite:///{home / 'mlflow.db'}")
    (version,) = client.search_model_versions("name = 'small'")
    private = [result for result in outcome["results"] if result["trust"] != "none"]
    best = min(private, key=lambda result: result["test_error"])
    assert client.get_run(version.run_id).data.tags["fedcore.run_id"] == best["run"]
    assert client.get_model_version_by_alias("small", "best").version == version.version
    assert client.get_model_version_by_alias("small", "latest-private").version == version.version
    assert version.tags["privacy.adjacency"].startswith("replace-one")
    assert float(version.tags["privacy.epsilon_accounted"]) == pytest.approx(best["epsilon_accounted"], rel=1e-4)
    assert version.tags["privacy.choice"].startswith("lowest test error of 4 cells: choosing flatters it")
    assert outcome["statement"] in version.tags["privacy.choice"]
