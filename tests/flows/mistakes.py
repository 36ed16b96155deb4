"""Shared by the tables of mistakes: a small experiment, and the checks of every error message."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

Call = Callable[..., tuple[int, str, str]]
"""The command line: exit code, standard output and standard error of its arguments."""

SMALL = """\
name: small
data:
  source: synthetic
  silos: 3
  records: 40
  features: 4
privacy:
  epsilon: 2
algorithm:
  name: mbsgd
  step: 1
  rounds: 4
cluster: {backend: in-process}
tracking: {mlflow: false}
"""
"""A correct experiment, with lines as a person would write them."""

HEADER, ROWS = "age,dose,ill\n", "31,0.1,0\n42,0.2,1\n53,0.3,0\n64,0.4,1\n"
OWN = """\
name: own
data:
  source: files
  silos:
    - {name: north, path: north.csv}
    - {name: south, path: south.csv}
  features: [age, dose]
  label: ill
privacy:
  epsilon: 1
  delta: 1e-4
algorithm:
  name: mbsgd
  rounds: 2
cluster: {backend: in-process}
"""
"""Two silos' files, four records each (HEADER + ROWS)."""


def instead(text: str, old: str, new: str) -> str:
    """The text with one part changed; fails if the part is missing, since the mistake would then not be made."""
    assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
    return text.replace(old, new)


def check_mistake(call: Call, arguments: Iterable[str], *texts: str, out: str = "") -> str:
    """Calls the command line in the present folder, with home and files, and checks its answer to a mistake.

    Exit code 2; one sentence on one line of standard error, with the texts `says` and no traceback; `out` on standard
    output; and no file or folder added or changed.
    """
    before = files(Path())
    code, output, sentence = call(*arguments)
    assert code == 2, sentence
    for each in texts:
        assert each in sentence
    assert sentence.endswith("\n") and sentence.count("\n") == 1, sentence
    for foreign in ("Traceback", "pydantic", "yaml.", "Error:", "[Errno", " None", "type="):
        assert foreign not in sentence
    assert output == out
    assert files(Path()) == before
    return sentence


def files(folder: Path) -> dict[str, bytes | None]:
    """Every file below a folder with its bytes, every folder with None."""
    found = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in found}
