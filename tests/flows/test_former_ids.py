"""Runs of former ids, which contain paths as they were typed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import run_id
from fedcore.home import Home
from flows.commands.run import resume
from flows.launch import launch_run
from flows.recorded.former_ids import RecordedRuns, refuse_former
from flows.runs import read_run, store_path
from tasks.run_store import RunStore
from tests.flows.driving import run

OLD = "former-0123456789ab"


@pytest.fixture
def home(tmp_path, monkeypatch) -> Home:
    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("north", "south")):
        X = np.random.default_rng(seed).uniform(-1, 1, size=(30, 2)).round(3)
        (tmp_path / f"{name}.csv").write_text("a,b,y\n" + "".join(f"{a},{b},{int(a > b)}\n" for a, b in X))
    return Home.current().make()


def config(folder: str = ".", **changes) -> ExperimentConfig:
    silos = [{"name": name, "path": f"{folder}/{name}.csv"} for name in ("north", "south")]
    return ExperimentConfig.model_validate(
        {
            "name": "former",
            "data": {"source": "files", "silos": silos, "features": ["a", "b"], "label": "y"},
            "privacy": {"epsilon": 2},
            "algorithm": {"name": "mbsgd", "rounds": 3, "step": 0.5},
            "cluster": {"backend": "in-process"},
            "tracking": {"mlflow": False},
            **changes,
        }
    )


def of_before(home: Home, made: ExperimentConfig, folder: Path, state: str) -> None:
    """A run of the config as version 0.2.0 left it, with paths typed from the root."""
    result = run(home, made)
    (home.runs / run_id(made)).rename(home.runs / OLD)
    store = RunStore(store_path(home, OLD))
    typed = made.model_dump(mode="json")
    for silo in typed["data"]["silos"]:
        silo["path"] = str(folder / Path(silo["path"]).name)
    finished = None if state != "FINISHED" else json.dumps(result.as_json())
    store.set_meta(parameters=json.dumps(typed), state=state, result=finished)
    store.close()


def test_a_finished_one_is_shown_and_not_trained_again(home, tmp_path, capsys):
    of_before(home, config(), tmp_path, "FINISHED")
    shown = launch_run(config(), Console(width=400))
    output = capsys.readouterr().out
    assert f"{OLD} is of the same parameters, under former ids (of paths as they were typed, or of where" in output
    assert shown == read_run(home, OLD).result and not (home.runs / run_id(config())).exists()
    resume(OLD, as_json=True)
    assert json.loads(capsys.readouterr().out)["weights_sha256"] == shown.weights_sha256
    assert RecordedRuns(home).former(config(repetition=1)) is None
    assert RecordedRuns(home).former(config(algorithm={"name": "mbsgd", "rounds": 4, "step": 0.5})) is None


def test_a_stopped_one_has_a_reason_why_it_cannot_be_resumed(home, tmp_path):
    of_before(home, config(), tmp_path, "KILLED")
    found = RecordedRuns(home).former(config())
    assert found.run == OLD and found.result is None
    with pytest.raises(InputError, match=rf"run {OLD} cannot go on: its id is of other paths .*{run_id(config())}.*=1"):
        resume(OLD)
    refuse_former(read_run(home, OLD).__class__(**{**vars(read_run(home, OLD)), "run": run_id(config())}))


def test_configs_without_paths_are_not_looked_for(home):
    made = ExperimentConfig.model_validate(
        {"name": "former", "privacy": {"epsilon": 1}, "algorithm": {"name": "mbsgd"}}
    )
    (home.runs / OLD).mkdir(parents=True)
    assert RecordedRuns(home).former(made) is None and RecordedRuns(home).former(config()) is None
