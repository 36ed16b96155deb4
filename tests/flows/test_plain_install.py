"""`pip install .[workflow]` from a copy of the tree: the command line works from anywhere, with pinned packages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedcore.data.federations.card import read_card
from fedcore.identity.invitation import Invitation
from fedcore.identity.keys import Identity
from tests.patience import HANGS

pytestmark = [pytest.mark.minutes, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
SOURCES = (
    "pyproject.toml",
    "constraints.txt",
    "README.md",
    "LICENSE",
    "NOTICE",
    "fedcore_command.py",
    "fedcore",
    "tasks",
    "flows",
    "conf",
)
QUIET = ("cluster.backend=in-process", "tracking.mlflow=false")
ENGINES = ("repetition=1",)  # uses Dask and MLflow; the backend is not part of a run's id


OTHERS = ("PYTHONPATH", "VIRTUAL_ENV", "FEDCORE_POLICIES")
"""Variables of these tests that an installation of a user's would not have."""


def call(*command: object, folder: Path, code: int = 0) -> str:
    """Standard output of the command, or standard error if it is expected to fail."""
    inherited = {name: value for name, value in os.environ.items() if name not in OTHERS}
    own = {"FEDCORE_HOME": str(folder / "home"), "FEDCORE_REGISTER": str(folder / "register")}
    environment = inherited | own | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment |= {"PIP_RETRIES": "10", "PIP_DEFAULT_TIMEOUT": "60"}
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, env=environment, capture_output=True, text=True, timeout=3 * HANGS
    )
    assert done.returncode == code, (command, done.returncode, done.stdout[-3000:], done.stderr[-3000:])
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr if code else done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder outside of the tree with an environment into which the project was installed."""
    folder = environment(tmp_path_factory.mktemp("plain"), "[workflow]")
    for name in ("digits.yaml", "hospitals.yaml"):
        fedcore(folder, "conf", "copy", f"experiment/{name}")
    return folder


def environment(folder: Path, extra: str) -> Path:
    """The folder, with an environment `env` into which the project and this extra were installed."""
    copy = folder / "tree"  # building leaves a folder behind
    copy.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy / name)
    call(sys.executable, "-m", "venv", folder / "env", folder=folder)
    constraints = copy / "constraints.txt"
    call(folder / "env/bin/python", "-m", "pip", "install", "-q", "-c", constraints, f"{copy}{extra}", folder=folder)
    shutil.rmtree(copy)
    return folder


def fedcore(folder: Path, *words: str, code: int = 0) -> str:
    return call(folder / "env/bin/fedcore", *words, folder=folder, code=code)


def test_what_is_installed_fits_together_and_is_pinned(installed):
    python = installed / "env/bin/python"
    assert "No broken requirements" in call(python, "-m", "pip", "check", folder=installed)
    frozen = call(python, "-m", "pip", "freeze", "--exclude", "fedcore-dp", folder=installed).split()
    pinned = [line.partition(";")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()]
    assert len(frozen) > 100 and sorted(set(frozen) - set(pinned)) == []
    where = call(python, "-c", "import fedcore; print(fedcore.__file__)", folder=installed)
    assert Path(where.strip()).is_relative_to(installed / "env")


def test_a_hospital_installs_no_engine_and_writes_its_card(tmp_path):
    folder = environment(tmp_path, "[silo]")
    frozen = call(folder / "env/bin/python", "-m", "pip", "freeze", folder=folder).lower()
    assert not any(f"{name}==" in frozen for name in ("prefect", "dask", "distributed", "mlflow", "fastapi"))
    coordinator = Identity.new()
    invitation = Invitation.new("heart", "http://127.0.0.1:1", coordinator.public)
    (folder / "heart.invitation").write_text(invitation.text(coordinator))
    (folder / "records.csv").write_text("age,disease\n" + "".join(f"{30 + i},{i % 2}\n" for i in range(40)))
    (folder / "schema.yaml").write_text("features: {age: {range: [20, 90]}}\nlabel: disease\n")
    files = ("--invitation", "heart.invitation", "--data", "records.csv", "--schema", "schema.yaml")
    fedcore(folder, "silo", "init", "cleveland", *files, "--fingerprint", coordinator.public.fingerprint)
    fedcore(folder, "silo", "card")
    made = read_card(folder / "cleveland.card")
    assert (made.name, made.records, made.federation) == ("cleveland", 40, invitation.federation)
    assert "[workflow]" in fedcore(folder, "run", "heart.yaml", code=2)


def test_help_is_shown(installed):
    assert "fedcore plan conf/experiment/digits.yaml" in " ".join(fedcore(installed, "--help").split())


def test_secret_samples_are_planned(installed):
    """Their accounting needs dp-accounting, which was once a dependency of dev only."""
    planned = json.loads(fedcore(installed, "plan", "digits.yaml", "algorithm.batch=8", "--json"))
    assert 1.9 < planned["totals"]["epsilon_accounted"] <= 2


@pytest.mark.parametrize("overrides", [QUIET, ENGINES], ids=["in-process", "engines"])
def test_a_run_is_made(installed, overrides):
    few = ("algorithm.rounds=[2,1,1]", "algorithm.max_phases=3", "algorithm.batch=8")
    result = json.loads(fedcore(installed, "run", "digits.yaml", *few, *overrides, "--json"))
    assert result["rounds"] == 4 and 1.9 < result["epsilon_accounted"] <= 2


def test_studies_are_not_installed_and_the_rows_of_their_advice_are(installed):
    python = installed / "env/bin/python"
    assert "No module named studies" in call(python, "-m", "studies", "list", folder=installed, code=1)
    assert not list(installed.glob("env/lib/*/site-packages/**/figures.yaml"))
    advice = json.loads(fedcore(installed, "advise", "digits.yaml", "--json"))
    assert advice["method"] and len(advice["rows"]) > 20
    (provenance,) = installed.glob("env/lib/*/site-packages/fedcore/advice/rows.provenance.json")
    assert json.loads(provenance.read_text())["study"] == "five-way"


def test_settings_are_tuned(installed):
    grid = ("--grid", "algorithm.step=[1,8]", "--simulations", "2", "-o", "tuned.yaml")
    fedcore(installed, "tune", "hospitals.yaml", "algorithm.rounds=5", *grid)
    assert (installed / "tuned.yaml").exists()


def test_the_four_hospitals_come_with_the_package(installed):
    values = json.loads(fedcore(installed, "run", "hospitals.yaml", *QUIET, "--json"))
    assert values["test_error"] < values["majority_error"] and set(values["test_errors"]) == {
        "cleveland",
        "budapest",
        "zurich-basel",
        "long-beach",
    }
    assert list(installed.glob("env/lib/*/site-packages/fedcore/data/sources/heart_disease/SOURCE.md"))


def test_a_silo_installs_no_engine_and_the_command_names_the_missing_one(tmp_path):
    """Without the extra, plans and training work from Python, and `fedcore` ends with one sentence."""
    folder = environment(tmp_path, "")
    python = folder / "env/bin/python"
    packages = {
        each["name"].lower() for each in json.loads(call(python, "-m", "pip", "list", "--format=json", folder=folder))
    }
    assert packages.isdisjoint({"prefect", "dask", "distributed", "mlflow", "mlflow-skinny", "typer", "fastapi"})
    trains = (
        "import numpy as np, fedcore; rng = np.random.default_rng(0); X = rng.normal(size=(300, 2));"
        "y = (X[:, 0] > 0).astype(float); silos = {'north': (X[:150], y[:150]), 'south': (X[150:], y[150:])};"
        "print(fedcore.plan(silos, epsilon=2))"
    )
    assert "epsilon" in call(python, "-c", trains, folder=folder)
    message = call(folder / "env/bin/fedcore", "runs", folder=folder, code=2)
    assert message.count("\n") == 1 and "pip install 'fedcore-dp[workflow]'" in message
