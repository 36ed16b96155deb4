"""Output of `make` during installation: a line per step, only pip's errors. Python is a stand-in."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = """#!/bin/sh
case "$*" in
--version) echo Python 3.12.1 ;;
-c*) exit 0 ;;
"-m venv .venv") mkdir -p .venv/bin; cp "$0" .venv/bin/python
    for tool in ruff mypy lint-imports fedcore; do printf '#!/bin/sh\\necho %s did\\n' $tool > .venv/bin/$tool; done
    chmod +x .venv/bin/* ;;
*"pip install"*) echo 'Collecting numpy==2.0'; echo 'Downloading numpy.whl (20 MB)'
    test -e PLACE/no-network && { echo 'ERROR: no route to the index' >&2; exit 3; }
    echo 'Installing collected packages: a, b, c'; echo 'Successfully installed a b c' ;;
*database*) echo made ;;
*) echo "python $*" ;;
esac
"""


@pytest.fixture
def place(tmp_path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    python = tmp_path / "python"
    python.write_text(PYTHON.replace("PLACE", str(tmp_path)))
    python.chmod(0o755)
    return tmp_path


def make(place: Path, target: str) -> tuple[int, list[str], str]:
    # A make that runs these tests sets these variables for its children.
    alone = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    command = ["make", target, f"PYTHON={place}/python"]
    done = subprocess.run(command, cwd=place, env=alone, capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize("target", ["run", "test"])
def test_each_step_of_the_installation_prints_one_line(place, target):
    rc, lines, errors = make(place, target)
    assert rc == 0, errors
    steps = [line[:8] for line in lines[:4]]
    assert steps == [f"[{step} of 4]" for step in range(1, 5)]
    assert "Python 3.12.1" in lines[0] and "3 packages" in lines[2] and "minutes" in lines[1]
    assert not any(word in line for line in lines for word in ("Collecting", "Downloading", "Successfully", "made"))
    _, again, _ = make(place, target)
    assert not any(line.startswith("[") for line in again), "what is installed is not installed again"


@pytest.mark.parametrize("failing", ["ruff", "mypy", "lint-imports", "python"])
@pytest.mark.parametrize("target", ["test", "check"])
def test_what_fails_beside_the_tests_fails_the_command_and_is_shown_last(place, target, failing):
    make(place, target)
    program = place / ".venv" / "bin" / failing
    program.write_text(f"#!/bin/sh\necho {failing} failed\nexit 1\n")
    rc, lines, _ = make(place, target)
    beside = failing in ("mypy", "lint-imports")
    if target == "check" and failing == "python":
        assert rc == 0
    else:
        assert rc != 0 and f"{failing} failed" in (lines[-2:] if beside else lines)
    if failing == "ruff":
        assert not any(line.startswith("python -m pytest") or line == "mypy did" for line in lines)
    elif target == "test" and beside:
        assert any(line.startswith("python -m pytest") for line in lines)


def test_what_pip_cannot_do_ends_the_installation_with_its_words(place):
    (place / "no-network").touch()
    rc, lines, errors = make(place, "run")
    assert rc != 0 and "no route to the index" in errors
    assert [line[:8] for line in lines] == ["[1 of 4]", "[2 of 4]"]
    (place / "no-network").unlink()
    assert make(place, "run")[0] == 0
