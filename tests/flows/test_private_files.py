"""What commands write under umask 022: nobody but the owner reads it, but for what the user named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fedcore.home import Home

COMMAND = Path(sys.executable).with_name("fedcore")
EXPERIMENT = {
    "name": "private",
    "data": {"source": "synthetic", "silos": 2, "records": 30, "features": 3, "test_records": 30},
    "algorithm": {"name": "mbsgd", "rounds": 3},
    "privacy": {"epsilon": 1, "ledger": "sqlite"},
}


def open_to_others(root: Path) -> list[str]:
    """All below a folder, and itself, that group or others may read, write or enter."""
    found = [root, *(Path(folder, name) for folder, folders, files in os.walk(root) for name in (*folders, *files))]
    return [str(path) for path in found if not path.is_symlink() and path.lstat().st_mode & 0o077]


@pytest.fixture
def fedcore(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    grid = {"name": "private", "base": "experiment.yaml", "grid": {"seed": [3, 4]}}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(grid))
    environment = os.environ | {"FEDCORE_HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [COMMAND, *arguments], cwd=tmp_path, env=environment, umask=0o022, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done

    yield call
    subprocess.run([COMMAND, "down"], cwd=tmp_path, env=environment, capture_output=True)


@pytest.mark.slow
def test_nothing_that_runs_and_services_write_is_open_to_others(fedcore, tmp_path):
    fedcore("run", "experiment.yaml", "cluster.backend=in-process")
    fedcore("run", "experiment.yaml", "seed=2", "cluster.workers=2")
    assert open_to_others(tmp_path / "home") == [] and Home(tmp_path / "home").strange() == []
    assert (tmp_path / "cache" / "fedcore").stat().st_mode & 0o077 == 0
    if os.geteuid() == 0:
        for path in ("home", "home/prefect/prefect.db", "home/mlflow.db"):
            assert (tmp_path / path).exists()
            seen = subprocess.run(["cat" if path != "home" else "ls", tmp_path / path], user=65534, capture_output=True)
            assert seen.returncode != 0


@pytest.mark.slow
@pytest.mark.minutes
def test_nothing_that_up_and_sweeps_write_is_open_to_others(fedcore, tmp_path):
    fedcore("up", "--workers", "1")
    fedcore("sweep", "sweep.yaml")
    fedcore("schedule", "add", "experiment.yaml", "--every", "1h", "--name", "often")
    assert open_to_others(tmp_path / "home") == [] and Home(tmp_path / "home").strange() == []


@pytest.mark.slow
@pytest.mark.minutes
def test_a_file_that_the_user_named_has_the_permissions_of_the_user(fedcore, tmp_path):
    fedcore("conf", "copy", "experiment/digits.yaml", "mine.yaml")
    assert (tmp_path / "mine.yaml").stat().st_mode & 0o777 == 0o644


@pytest.mark.slow
@pytest.mark.minutes
def test_an_open_home_is_closed_and_that_is_said_once(fedcore, tmp_path):
    home = tmp_path / "home"
    (home / "runs" / "old").mkdir(parents=True)
    (home / "runs" / "old" / "result.json").write_text("{}")
    (home / "runs" / "old" / "result.json").chmod(0o644)
    for folder in (home, home / "runs", home / "runs" / "old"):
        folder.chmod(0o755)
    assert "could be read by others" in fedcore("conf", "list").stderr
    assert open_to_others(home) == []
    assert fedcore("conf", "list").stderr == ""


def test_a_folder_with_other_things_is_not_closed(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "thesis.tex").write_text("")
    tmp_path.chmod(0o755)
    assert not Home(tmp_path).closed() and tmp_path.stat().st_mode & 0o777 == 0o755


def test_a_folder_that_all_share_is_not_closed(tmp_path):
    tmp_path.chmod(0o1777)
    assert not Home(tmp_path).closed() and tmp_path.stat().st_mode & 0o7777 == 0o1777


def test_the_library_keeps_the_umask_of_its_caller():
    code = (
        "import os; os.umask(0o022); import numpy as np, fedcore\n"
        "X = np.eye(4); y = np.array([1., -1, 1, -1])\n"
        "try:\n    fedcore.train({'a': (X, y), 'b': (X, y)}, epsilon=2)\nexcept ValueError:\n    pass\n"
        "raise SystemExit(os.umask(0) != 0o022)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode == 0
