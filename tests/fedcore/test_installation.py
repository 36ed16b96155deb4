"""An environment without the extra, or with another project's `tasks` or `flows`, ends in one sentence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from fedcore import __version__
from fedcore.process.installation import DISTRIBUTION, clash, complaint

ROOT = Path(__file__).parents[2]


def test_there_is_one_version():
    """`fedcore.__version__` equals the version in pip's metadata and in the citation."""
    assert version(DISTRIBUTION) == __version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__


@pytest.mark.parametrize("module", ["prefect", "mlflow", "distributed", "typer", "rich", "psutil", "sqlalchemy.orm"])
def test_a_missing_package_of_the_extra_names_the_package_and_the_command(module):
    sentence = complaint(ModuleNotFoundError(f"No module named {module!r}", name=module))
    assert sentence is not None and repr(module.partition(".")[0]) in sentence
    assert "pip install 'fedcore-dp[workflow]'" in sentence


@pytest.mark.parametrize("module", ["numpy", "yaml", "pytest", "a_module_that_nobody_has", None])
def test_any_other_import_that_fails_is_not_blamed_on_the_installation(module):
    assert complaint(ImportError("broken", name=module)) is None


def test_a_broken_import_within_our_own_files_is_a_fault_of_fedcore():
    """A name that one of our files does not have is no clash, unless another distribution has the package too."""
    ours = str(ROOT / "flows" / "launch.py")
    assert complaint(ImportError("cannot import name 'gone'", name="flows.launch", path=ours)) is None
    elsewhere = ImportError("cannot import name 'gone'", name="flows.launch", path="/srv/flows/launch.py")
    assert "(/srv/flows)" in str(complaint(elsewhere))
    assert "'tasks'" in str(complaint(ModuleNotFoundError("No module named 'tasks.training'", name="tasks.training")))


def test_a_clash_names_the_package_its_other_owner_and_its_place():
    sentence = clash("tasks", ["fedcore-dp", "celery-tasks"], "/srv/env/tasks/__init__.py")
    assert "'tasks'" in sentence and "'celery-tasks'" in sentence and "(/srv/env/tasks)" in sentence
    assert clash("flows", ["fedcore_dp"], "").count("another project's was found") == 1


@pytest.mark.slow
@pytest.mark.parametrize("package", ["tasks", "flows"])
def test_the_command_with_files_of_another_project_in_its_place_is_one_sentence_and_2(package, tmp_path):
    """As pip leaves it where a second distribution with this top-level package was installed over ours."""
    for name in ("fedcore", "flows", "tasks"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "conf"))
    shutil.copy(ROOT / "fedcore_command.py", tmp_path)
    shutil.rmtree(tmp_path / package)
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("")
    # -S keeps the finder of an editable install away, which would find ours elsewhere.
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    paths = f"sys.path += {libraries!r}; sys.path.insert(0, {str(tmp_path)!r})"
    code = f"import sys; {paths}; import fedcore_command; fedcore_command.main()"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    (elsewhere := tmp_path / "elsewhere").mkdir()
    command = [sys.executable, "-S", "-c", code, "runs"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=elsewhere, env=environment)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and f"'{package}'" in done.stderr and "environment of its own" in done.stderr
