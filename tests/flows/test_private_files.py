"""Files of commands under umask 022: only the owner can read them, except files that the user named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    """A folder and the paths below it that group or others may read, write or enter."""
    found = [root, *(Path(folder, name) for folder, folders, files in os.walk(root) for name in (*folders, *files))]
    return [str(path) for path in found if not path.is_symlink() and path.lstat().st_mode & 0o077]


@contextmanager
def commands(folder: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """The command line with home and caches in this folder, which also holds an experiment and a sweep."""
    folder.chmod(0o755)
    (folder / "experiment.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    grid = {"name": "private", "base": "experiment.yaml", "grid": {"seed": [3, 4]}}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(grid))
    environment = os.environ | {"FEDCORE_HOME": str(folder / "home"), "XDG_CACHE_HOME": str(folder / "cache")}

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [COMMAND, *arguments], cwd=folder, env=environment, umask=0o022, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done

    yield call
    subprocess.run([COMMAND, "down"], cwd=folder, env=environment, capture_output=True)


@pytest.fixture
def fedcore(tmp_path):
    with commands(tmp_path) as call:
        yield call


@pytest.fixture(scope="module")
def used(tmp_path_factory):
    """A folder whose home several tests write to, and the command line there: databases are made once."""
    folder = tmp_path_factory.mktemp("used")
    with commands(folder) as call:
        yield folder, call


@pytest.mark.slow
@pytest.mark.minutes
def test_nothing_that_runs_and_services_write_is_open_to_others(used):
    folder, fedcore = used
    fedcore("run", "experiment.yaml", "cluster.backend=in-process")
    fedcore("run", "experiment.yaml", "seed=2", "cluster.workers=2")
    assert open_to_others(folder / "home") == [] and Home(folder / "home").strange() == []
    assert (folder / "cache" / "fedcore").stat().st_mode & 0o077 == 0
    if os.geteuid() == 0:
        for path in ("home", "home/prefect/prefect.db", "home/mlflow.db"):
            assert (folder / path).exists()
            seen = subprocess.run(["cat" if path != "home" else "ls", folder / path], user=65534, capture_output=True)
            assert seen.returncode != 0


@pytest.mark.slow
@pytest.mark.minutes
def test_nothing_that_up_and_sweeps_write_is_open_to_others(used):
    folder, fedcore = used
    fedcore("up", "--workers", "1")
    fedcore("sweep", "sweep.yaml")
    fedcore("schedule", "add", "experiment.yaml", "--every", "1h", "--name", "often")
    assert open_to_others(folder / "home") == [] and Home(folder / "home").strange() == []


@pytest.mark.slow
@pytest.mark.minutes
def test_a_file_that_the_user_named_has_the_permissions_of_the_user(fedcore, tmp_path):
    fedcore("conf", "copy", "experiment/digits.yaml", "mine.yaml")
    assert (tmp_path / "mine.yaml").stat().st_mode & 0o777 == 0o644


@pytest.mark.slow
@pytest.mark.minutes
def test_an_open_home_is_closed_with_one_notice(fedcore, tmp_path):
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


@pytest.mark.minutes
def test_the_library_keeps_the_umask_of_its_caller():
    code = (
        "import os; os.umask(0o022); import numpy as np, fedcore\n"
        "X = np.eye(4); y = np.array([1., -1, 1, -1])\n"
        "try:\n    fedcore.train({'a': (X, y), 'b': (X, y)}, epsilon=2)\nexcept ValueError:\n    pass\n"
        "raise SystemExit(os.umask(0) != 0o022)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode == 0
