"""Runs and schedules from another working folder than that of their config's paths."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedcore.experiment.identity import run_id
from fedcore.experiment.loading import load_experiment
from flows.commands.schedule import _loaded
from tests.patience import HANGS

CONFIG = """
name: elsewhere
data: {source: files, silos: [{name: north, path: data/north.csv}, {name: south, path: data/south.csv}],
       features: [a, b], label: y, test: data/north-public.csv}
privacy: {epsilon: 2}
algorithm: {name: mbsgd, rounds: 6, step: 0.5}
cluster: {backend: in-process}
tracking: {mlflow: false}
"""

STOPPED = """
import os, sys
from flows.training import train
from flows.driver.session import Session
from fedcore.experiment.loading import load_experiment
from fedcore.home import Home

def rounds(training):
    while training.phase is not None:
        training.advance()
        if training.round == 4:
            os._exit(9)

with Session.of_driver(Home.current().make()) as session:
    train(load_experiment("mine.yaml"), session, rounds)
"""


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    made = tmp_path / "project"
    (made / "data").mkdir(parents=True)
    for seed, name in enumerate(("north", "south", "north-public")):
        X = np.random.default_rng(seed).uniform(-1, 1, size=(30, 2)).round(3)
        (made / "data" / f"{name}.csv").write_text("a,b,y\n" + "".join(f"{a},{b},{int(a > b)}\n" for a, b in X))
    (made / "mine.yaml").write_text(CONFIG)
    monkeypatch.setenv("FEDCORE_HOME", str(made / ".fedcore"))
    monkeypatch.chdir(made)
    return made


def test_a_schedule_names_its_data_wherever_deployments_run(project, tmp_path, monkeypatch):
    """In whatever folder `fedcore up` started, for runs and sweeps and each kind of path."""
    wanted = [f"{project}/data/{name}.csv" for name in ("north", "south", "north-public")]
    for overrides in ([], ["seed=0,1"]):
        kind, _, parameters, cells, _ = _loaded(Path("mine.yaml"), overrides, True)
        data = (parameters["base"] if kind == "sweep" else parameters)["data"]
        assert [*(silo["path"] for silo in data["silos"]), data["test"]] == wanted
        ids = {run_id(cell) for cell in cells}
        monkeypatch.chdir(tmp_path)
        again = type(cells[0]).model_validate(parameters if kind == "run" else cells[0].model_dump(mode="json"))
        assert run_id(again) in ids
        monkeypatch.chdir(project)


@pytest.mark.minutes
@pytest.mark.slow
def test_a_stopped_run_goes_on_from_another_folder_by_the_real_command(project, tmp_path):
    stopped = subprocess.run(
        [sys.executable, "-c", STOPPED], cwd=project, capture_output=True, text=True, timeout=HANGS, check=False
    )
    assert stopped.returncode == 9, stopped.stderr
    run = run_id(load_experiment(project / "mine.yaml"))
    resumed = subprocess.run(
        [sys.executable, "-m", "flows.commands.app", "resume", "elsewhere-", "--json"],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=HANGS,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["run"] == run
