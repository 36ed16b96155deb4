"""The command line of the studies in the process of a test, and a small study to run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from flows.commands.app import main
from studies import study
from studies.commands import app


@pytest.fixture
def studies(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable:
    """Calls `python -m studies`; returns exit code, standard output and standard error."""
    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path / "home"))

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["studies", *arguments])
        try:
            main(app, "studies")
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A registered study `small` of two figures, one of which chooses its settings on simulated silos. Its folder."""
    folder = tmp_path / "conf" / "small"
    folder.mkdir(parents=True)
    seeds = {"seed": [0, 1, 2]}
    figures = [
        {"name": "plain", "title": "Plain", "sweep": "plain.yaml"},
        {
            "name": "chosen",
            "title": "Chosen",
            "sweep": "methods.yaml",
            "chosen": {"data": "data.yaml", "simulated": "simulated.yaml", "seeds": [1000, 1001]},
            "grid": {"privacy.epsilon": [2], **seeds},
            "along": [2],
            "points": {"compared": True},
        },
    ]
    config = {"title": "Small", "paper": "no paper", "minutes": 1, "figures": figures}
    data = {"source": "synthetic", "silos": 2, "records": 60, "features": 3, "test_records": 100}
    base = {
        "data": data,
        "cluster": {"backend": "in-process"},
        "orchestration": {"tasks": "phase"},
        "tracking": {"mlflow": False, "evaluate_every": 1},
    }
    mbsgd = {"algorithm": {"name": "mbsgd", "rounds": 3, "average": "last"}}
    fedavg = {"algorithm": {"name": "fedavg", "rounds": 3, "sampling_rate": 1.0}}
    plain = {"base": base, "grid": {**seeds, "privacy.epsilon": [1, 4]}, "variants": [{"set": mbsgd}]}
    variants = [{"set": each, "grid": {"algorithm.step": [0.5, 4.0]}} for each in (mbsgd, fedavg)]
    simulated = {**base, "data": {**data, "records": 50}}
    for name, values in {
        "figures": config,
        "plain": {"name": "plain", **plain},
        "methods": {"name": "methods", "variants": variants},
        "data": base,
        "simulated": simulated,
    }.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(values))
    monkeypatch.setattr(study, "STUDIES", folder.parent)
    return folder
