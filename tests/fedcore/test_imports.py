"""The arrows: flows -> tasks -> fedcore, methods reach no record, one file each for the engines (import-linter)."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_import_contracts_of_pyproject_are_kept():
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    env = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 broken" in done.stdout and " 0 kept" not in done.stdout


def test_science_alone_loads_no_engine():
    code = (
        "import sys, fedcore.experiment.experiment, fedcore.experiment.loading, fedcore.federation.rounds;"
        "print(*{'prefect', 'dask', 'distributed', 'mlflow', 'flows', 'tasks'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
