"""Warnings of tiny silos by commands that start runs (`run`, `sweep`, `resume`, `schedule`) and by studies."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import datetime

import pytest

from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import run_id
from fedcore.experiment.sweep import SweepConfig
from fedcore.home import Home
from flows.commands import run as commands
from flows.commands import schedule
from flows.launch import save_sweep_folder
from flows.run_lock import store_path
from flows.sweep_files import sweep_id
from studies import commands as studies
from tasks.run_store import RunStore
from tests.flows.driving import run

TINY = {
    "name": "tiny",
    "data": {"source": "synthetic", "silos": 3, "records": 12, "features": 2, "test_records": 20},
    "privacy": {"epsilon": 1},
    "algorithm": {"name": "mbsgd", "rounds": 2},
    "tracking": {"mlflow": False},
    "cluster": {"backend": "in-process"},
}
SAID = "warning: delta is above 0.001 at 3 of 3 silos"


@pytest.fixture
def home(tmp_path, monkeypatch) -> Home:
    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for name in ("launch_run", "launch_sweep"):
        monkeypatch.setattr(f"flows.launch.{name}", begins)
    return Home.current().make()


def begins(*_, **__):
    raise InputError("as far as this")


def test_resume_of_a_run_and_of_a_sweep_prints_them_again(home, capsys):
    made = ExperimentConfig.model_validate(TINY)
    run(home, made)
    store = RunStore(store_path(home, run_id(made)))
    store.set_meta(state="KILLED", result=None)
    store.close()
    swept = SweepConfig.model_validate({"name": "tiny", "base": TINY, "grid": {"seed": [1, 2]}})
    save_sweep_folder(home, swept)
    for name in (run_id(made), sweep_id(swept)):
        with pytest.raises(InputError, match="as far as this"):
            commands.resume(name)
        assert capsys.readouterr().err.startswith(SAID)


def test_a_study_prints_them_before_it_begins(home, capsys, monkeypatch):
    monkeypatch.setattr("studies.running.launch_sweep", begins)
    monkeypatch.setattr("studies.running.largest", lambda *_: (ExperimentConfig.model_validate(TINY),))
    with pytest.raises(InputError, match="as far as this"):
        studies.run("localized", yes=True)
    assert capsys.readouterr().err.startswith(SAID)


def test_a_schedule_prints_them_when_it_is_made(home, capsys, monkeypatch, tmp_path):
    import yaml

    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY))
    made = []
    monkeypatch.setattr(schedule, "_prefect", nullcontext)
    monkeypatch.setattr("flows.schedules.schedule.add", lambda *given: made.append(given))
    schedule.add(path, every="6h")
    printed = capsys.readouterr()
    assert printed.err.startswith(SAID) and len(made) == 1 and f"{datetime.now():%Y}" in printed.out
