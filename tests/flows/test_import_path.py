"""Modules on PYTHONPATH with names of fedcore's packages: neither the command nor its processes import them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedcore.process.import_path import safe_environment

PROJECT = Path(__file__).resolve().parents[2]
PLANTED = ["tasks.py", "flows.py", "fedcore.py", "fedcore/__init__.py", "tasks/__init__.py"]


def planted(folder: Path, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("raise RuntimeError('not ours')")
    return folder


@pytest.mark.parametrize("name", PLANTED)
def test_a_folder_that_hides_ours_reaches_no_child(tmp_path, name):
    hiding, plain = str(planted(tmp_path / "hiding", name)), str(tmp_path)
    found = safe_environment({"PYTHONPATH": os.pathsep.join([hiding, plain])})["PYTHONPATH"].split(os.pathsep)
    assert hiding not in found and found[-1] == plain


def test_a_folder_without_such_modules_stays(tmp_path):
    (tmp_path / "tasks").mkdir()  # a folder without __init__.py hides no package
    assert str(tmp_path) in safe_environment({"PYTHONPATH": str(tmp_path)})["PYTHONPATH"].split(os.pathsep)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_the_command_is_ours(tmp_path, name):
    """Called as by pip's script, with the project on the path behind the entries of PYTHONPATH."""
    script = f"import sys; sys.path.append({str(PROJECT)!r}); from fedcore_command import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, "--version"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(planted(tmp_path / "hiding", name)), "FEDCORE_HOME": str(tmp_path / "h")},
    )
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("fedcore ")
