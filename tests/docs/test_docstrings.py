"""Docstrings and comments: short sentences, no question as a first line. The script that finds the others."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "docs" / "scripts"))
docstrings = importlib.import_module("docstrings")
LONG = " ".join(["word"] * 26)


@pytest.mark.parametrize("room", docstrings.CODE)
def test_no_docstring_and_no_comment_has_a_fault(room):
    found = [each for path in docstrings.sources([str(ROOT / room)]) for each in docstrings.findings(path)]
    assert not found, "\n".join(f"{each.path}:{each.line}: {each.kind}: {each.sentence}" for each in found)


@pytest.mark.parametrize(
    "source, kinds",
    [
        ('"""What a thing is."""', ["question"]),
        ('def f():\n    """Whether it holds."""', ["question"]),
        ('class A:\n    x: int = 1\n    """How many."""', ["question"]),
        (f'"""Name. {LONG}."""', ["long"]),
        (f'"""Name.\n\n    `x`: {LONG}\n    """', ["long"]),
        (f"x = 1  # {LONG}", ["long"]),
        (f"# {' '.join(['word'] * 13)}\n# {' '.join(['word'] * 13)}\nx = 1", ["long"]),
        (f"# {' '.join(['word'] * 13)}\n\n# {' '.join(['word'] * 13)}\nx = 1", []),
        ('"""Values that nobody told."""', ["word"]),
        ("x = 1  # said before", ["word"]),
        (f'"""Name: {" ".join(["word"] * 13)}; {" ".join(["word"] * 13)}."""', []),
        (f'x = """What {LONG} said"""', []),
        ('"""Number of records.\n\nWhat follows is prose."""', []),
        ("x = 1  # noqa: E501", []),
    ],
)
def test_faults_are_found_in_prose_alone(tmp_path, source, kinds):
    path = tmp_path / "module.py"
    path.write_text(source)
    assert [each.kind for each in docstrings.findings(path)] == kinds
