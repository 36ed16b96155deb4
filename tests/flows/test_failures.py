"""An unexpected exception in the real command: no traceback, a log, and its own exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.failures import MOST_LOGS, without_secrets

COMMAND = Path(sys.executable).with_name("fedcore")
ROOT = Path(__file__).resolve().parents[2]
CONFIG = str(ROOT / "conf" / "experiment" / "digits.yaml")
BROKEN = """
import fedcore.configfile.reading
def broken(path, overrides):
    raise LookupError("planted, of postgres://me:hunter2@host")
fedcore.configfile.reading.read_yaml = broken
"""

pytestmark = pytest.mark.slow


def fedcore(folder: Path, *arguments: str, planted: str = "", **options) -> subprocess.CompletedProcess[str]:
    """The command with a replaced internal, through a `sitecustomize` on PYTHONPATH."""
    (folder / "planted").mkdir(exist_ok=True)
    (folder / "planted" / "sitecustomize.py").write_text(planted)
    environment = os.environ | {"PYTHONPATH": str(folder / "planted"), "TMPDIR": str(folder)}
    environment["FEDCORE_HOME"] = options.pop("home", str(folder / "home"))
    return subprocess.run(
        [COMMAND, *arguments],
        cwd=folder,
        env=environment,
        text=True,
        stderr=subprocess.PIPE,
        stdout=options.pop("stdout", subprocess.PIPE),
        **options,
    )


def test_an_unforeseen_exception_is_a_sentence_a_private_log_and_70(tmp_path):
    done = fedcore(tmp_path, "plan", CONFIG, "--token=hunter2", planted=BROKEN)
    assert done.returncode == 2  # an unknown option is an expected error
    done = fedcore(tmp_path, "plan", CONFIG, "privacy.token=hunter2", planted=BROKEN)
    assert done.returncode == 70
    assert "Traceback" not in done.stderr and "LookupError" in done.stderr and done.stderr.count("\n") == 1
    (log,) = (tmp_path / "home" / "failures").glob("*.log")
    assert str(log) in done.stderr
    assert log.stat().st_mode & 0o777 == 0o600 and log.parent.stat().st_mode & 0o777 == 0o700
    text = log.read_text()
    assert "Traceback" in text and "planted" in text and "fedcore 0." in text and "'plan'" in text
    assert "hunter2" not in text


@pytest.mark.minutes
def test_without_a_home_the_log_is_a_private_temporary_file(tmp_path):
    (tmp_path / "file").write_text("")
    done = fedcore(tmp_path, "plan", CONFIG, planted=BROKEN, home=str(tmp_path / "file" / "home"))
    assert done.returncode == 70
    (log,) = tmp_path.glob("fedcore-*.log")
    assert str(log) in done.stderr and log.stat().st_mode & 0o777 == 0o600


@pytest.mark.minutes
def test_logs_do_not_fill_a_home(tmp_path):
    folder = tmp_path / "home" / "failures"
    folder.mkdir(parents=True)
    for number in range(MOST_LOGS + 5):
        (folder / f"20200101T000000-{number:04}.log").write_text("old")
    assert fedcore(tmp_path, "plan", CONFIG, planted=BROKEN).returncode == 70
    assert len(list(folder.iterdir())) == MOST_LOGS


@pytest.mark.parametrize("arguments", [("plan", CONFIG), ("algorithms",), ("conf", "list", "--json"), ("--help",)])
def test_a_reader_that_went_away_is_no_alarm(tmp_path, arguments):
    read, write = os.pipe()
    os.close(read)
    done = fedcore(tmp_path, *arguments, stdout=write)
    os.close(write)
    assert done.returncode == 141 and done.stderr == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a device that is always full")
@pytest.mark.parametrize("arguments", [("plan", CONFIG), ("conf", "list", "--json")])
def test_a_full_device_is_a_sentence(tmp_path, arguments):
    with open("/dev/full", "w") as full:
        done = fedcore(tmp_path, *arguments, stdout=full)
    assert done.returncode == 2
    assert done.stderr == "standard output cannot be written (No space left on device)\n"


def test_an_exit_of_a_service_is_70_and_its_traceback_in_its_log(tmp_path):
    done = subprocess.run(
        [sys.executable, "-P", "-m", "flows.carriers.shuffler", str(tmp_path), "no-number", "2", "1", "1"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 70 and "ValueError" in done.stderr


def test_secrets_are_not_in_a_logged_command():
    given = [
        "fedcore",
        "x",
        "a.token=1",
        "--password",
        "2",
        "--private-key=3",
        "privacy.epsilon=2",
        "http://me:4@host/5",
    ]
    shown = [
        "fedcore",
        "x",
        "a.token=***",
        "--password",
        "***",
        "--private-key=***",
        "privacy.epsilon=2",
        "http://***@host/5",
    ]
    assert without_secrets(given) == shown


@pytest.mark.parametrize("broken", ["flows.commands.app", "typer", "fedcore.ledger", "flows.failures", "fedcore.home"])
def test_a_command_line_that_cannot_be_imported_ends_with_70(tmp_path, broken):
    planted = (
        "import sys\n"
        "class Broken:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {broken!r}:\n"
        "            raise RuntimeError('planted \\x1b[31m')\n"
        "sys.meta_path.insert(0, Broken())\n"
    )
    done = fedcore(tmp_path, "budget", "show", planted=planted)
    assert done.returncode == 70 and "RuntimeError" in done.stderr and "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.minutes
def test_the_child_that_makes_a_database_ends_with_70(tmp_path):
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tasks.mlflow.database", str(tmp_path / "file" / "mlflow.db")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 70 and "Traceback" in done.stderr
