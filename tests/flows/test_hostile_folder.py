"""A working folder full of foreign modules: no command, and no process that it starts, imports one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[2]
COMMAND = Path(sys.executable).with_name("fedcore")
OURS = ("fedcore", "flows", "tasks", "benchmarks", "tests")
EXPERIMENT = {
    "name": "hostile",
    "data": {"source": "synthetic", "silos": 2, "records": 30, "features": 3, "test_records": 30},
    "algorithm": {"name": "mbsgd", "rounds": 4},
    "privacy": {"epsilon": 1},
}

pytestmark = [pytest.mark.slow, pytest.mark.minutes]


class HostileFolder:
    """A folder with a file and a package for every known module; each writes its name to a marker when imported."""

    def __init__(self, root: Path) -> None:
        self.folder, self.home, self.marker = root / "work", root / "home", root / "marker"
        self.folder.mkdir()
        (self.folder / "experiment.yaml").write_text(yaml.safe_dump(EXPERIMENT))
        grid = {"name": "hostile", "base": "experiment.yaml", "grid": {"seed": [0, 1]}}
        (self.folder / "sweep.yaml").write_text(yaml.safe_dump(grid))
        names = {*sys.stdlib_module_names, *packages_distributions(), *OURS, "sitecustomize", "usercustomize"}
        for name in sorted(names - {"__main__"}):
            if name.isidentifier():
                self._plant(name)

    def _plant(self, name: str) -> None:
        text = f"with open({str(self.marker)!r}, 'a') as file:\n    file.write({name!r} + chr(10))\n"
        if name in OURS:
            (self.folder / name).mkdir()
            (self.folder / name / "__init__.py").write_text(text)
        else:
            (self.folder / f"{name}.py").write_text(text)

    def __call__(self, *arguments: str, command: tuple[str, ...] = (str(COMMAND),), **variables: str) -> str:
        """Runs a command, checks that it succeeds and that no planted module ran; returns standard output."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run(
            [*command, *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=280,
            env=inherited | {"FEDCORE_HOME": str(self.home)} | variables,
        )
        assert self.planted() == ""
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def keep_what_python_starts_without(self) -> None:
        """Removes modules that the interpreter imports at its start, before any code of fedcore.

        These are the standard library (a relative entry of PYTHONPATH comes first), customisations, and imports of
        the environment's .pth files.
        """
        started = subprocess.run(
            [sys.executable, "-I", "-c", "import sys; print(*sys.modules)"], capture_output=True, text=True, check=True
        )
        by_start = {"sitecustomize", "usercustomize", *sys.stdlib_module_names, *started.stdout.split()}
        for each in self.folder.glob("*.py"):
            if each.stem in by_start:
                each.unlink()

    def planted(self) -> str:
        return self.marker.read_text() or "settings of Prefect" if self.marker.exists() else ""


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[HostileFolder]:
    folder = HostileFolder(tmp_path)
    yield folder
    subprocess.run(
        [COMMAND, "down"], cwd=tmp_path, capture_output=True, env=os.environ | {"FEDCORE_HOME": str(folder.home)}
    )


def test_runs_sweeps_and_audits_import_nothing_from_the_working_folder(hostile):
    hostile("plan", "experiment.yaml")
    hostile("run", "experiment.yaml", "cluster.backend=in-process")
    hostile("run", "experiment.yaml", "seed=2", "cluster.workers=2")
    hostile("sweep", "sweep.yaml", "cluster.workers=2")
    hostile("audit", "experiment.yaml")


@pytest.mark.parametrize("path", [":", *(pytest.param(path, marks=pytest.mark.hours) for path in (".", ":/nowhere"))])
def test_a_relative_entry_of_pythonpath_reaches_no_child(hostile, path):
    hostile.keep_what_python_starts_without()
    (hostile.folder / "fedcore_command.py").unlink(missing_ok=True)  # imported before fedcore's first line
    hostile("run", "experiment.yaml", "cluster.workers=2", PYTHONPATH=path)


@pytest.mark.hours
def test_python_m_imports_what_is_installed(hostile):
    """Python itself searches the folder for the package of -m and for what starts it; fedcore keeps out the rest."""
    hostile.keep_what_python_starts_without()
    (hostile.folder / "flows" / "__init__.py").unlink()
    (hostile.folder / "flows").rmdir()
    command = (sys.executable, "-m", "flows.commands.app")
    hostile("run", "experiment.yaml", "cluster.workers=2", command=command)


@pytest.mark.parametrize(
    "name, text",
    [
        (".env", "PREFECT_LOGGING_CONFIG_PATH=logging.yml\n"),
        ("prefect.toml", '[logging]\nconfig_path = "logging.yml"\n'),
        ("pyproject.toml", '[tool.prefect.logging]\nconfig_path = "logging.yml"\n'),
    ],
)
def test_settings_that_prefect_would_read_there_are_refused(tmp_path, name, text):
    """A settings file for logging can name a function to call: here `os.open`, which makes the marker."""
    marker = tmp_path / "marker"
    call = f"{{'()': 'os.open', path: '{marker}', flags: {os.O_CREAT | os.O_WRONLY}}}"
    (tmp_path / "logging.yml").write_text(f"version: 1\nhandlers:\n  evil: {call}\n")
    (tmp_path / name).write_text(text)
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    done = subprocess.run(
        [COMMAND, "run", "experiment.yaml", "cluster.backend=in-process"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"FEDCORE_HOME": str(tmp_path / "home"), "FEDCORE_SERVER_IDLE": "3"},
    )
    assert not marker.exists()
    assert done.returncode == 2 and f"{name} holds settings of Prefect" in done.stderr


def test_services_import_nothing_from_the_folder_in_which_up_was_called(hostile):
    hostile("up", "--workers", "2")
    hostile("run", "experiment.yaml")
    hostile("schedule", "add", "experiment.yaml", "--every", "1h", "--name", "often")
    flow = "run/run"
    fired = (
        "import os; from pathlib import Path; from fedcore.home import Home\n"
        "from flows.services.environment import prefect_environment, prefect_settings\n"
        "from flows.services.up_file import active_services\n"
        "home = Home.current(); os.environ.update(prefect_environment(home))\n"
        "with prefect_settings(home, active_services(home)['prefect']):\n"
        "    from prefect.deployments import run_deployment\n"
        f"    print(run_deployment({flow!r}, timeout=150).state.type.value)\n"
    )
    output = hostile("-P", "-c", fired, command=(sys.executable,), PYTHONPATH=str(PROJECT))
    assert output.splitlines()[-1] == "COMPLETED"
    hostile("down")


def test_a_shuffler_imports_nothing_from_its_working_folder(hostile):
    shuffled = EXPERIMENT | {"name": "shuffled"}
    (hostile.folder / "shuffled.yaml").write_text(yaml.safe_dump(shuffled))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    process = subprocess.Popen(
        [COMMAND, "shuffler", "--port", "0"],
        cwd=hostile.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment | {"FEDCORE_HOME": str(hostile.home)},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        time.sleep(0.5)
        assert hostile.planted() == "" and process.poll() is None, line
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()
