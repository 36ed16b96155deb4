"""Transcripts in README and docs are the commands' output; and the comparison finds differences."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import HANGS

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "docs" / "scripts" / "transcripts.py"

TABLE = """digits-69af01a83b49

 method epsilon accounted test error spread runs rounds seconds
 ----------------------------------------------------------------
 mbsgd     none         -      0.134  0.007    3     40    0.72
 mbsgd        1    1.0000      0.225  0.061    3     40    0.48

seeded simulation.
"""


@pytest.fixture(scope="module")
def transcripts():
    spec = importlib.util.spec_from_file_location("transcripts", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "old, new, seen",
    [
        ("0.225  0.061    3     40    0.48", "0.301  0.040    3     40    9.99", False),  # noise and clocks
        ("0.225  0.061", "0.470  0.061", True),  # beyond four spreads
        ("0.134  0.007", "0.135  0.007", True),  # no noise
        ("1    1.0000", "1    0.9999", True),
        ("     40    0.48", "     41    0.48", True),
        ("seeded simulation.", "seeded.", True),
        ("accounted", "spent", True),
        ("\nseeded simulation.\n", "", True),
        ("digits-69af01a83b49\n", "digits-69af01a83b49 \n", False),
        ("digits-69af01a83b49\n\n", "\ndigits-69af01a83b49\n", True),
    ],
)
def test_only_what_noise_and_clocks_decide_may_differ(transcripts, old, new, seen):
    assert old in TABLE
    assert bool(list(transcripts.differences(TABLE, TABLE.replace(old, new)))) is seen
    assert not list(transcripts.differences(TABLE, TABLE))


def test_heads_of_several_words_are_one_column(transcripts):
    table = TABLE.replace("seconds", "by silo")
    assert not list(
        transcripts.differences(table, table.replace("0.061    3     40    0.48", "0.061    3     40    0.44"))
    )
    assert list(transcripts.differences(table, table.replace("0.72", "0.73")))  # no noise


def test_a_named_page_alone_is_remade(transcripts, tmp_path, monkeypatch, capsys):
    pages = [tmp_path / "one.md", tmp_path / "other.md"]
    for page in pages:
        page.write_text("```text\n$ fedcore --version\nfedcore 0\n```\n")
    monkeypatch.setattr(transcripts, "PAGES", pages)
    monkeypatch.setattr(transcripts, "ROOT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert transcripts.main([str(pages[1])]) == 0
    assert ["fedcore 0\n" in page.read_text() for page in pages] == [True, False]
    assert transcripts.main([str(tmp_path / "none.md")]) == 2 and "none.md: no page" in capsys.readouterr().out


def test_a_page_is_mended_and_a_failing_command_is_an_error(transcripts, tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("before\n```text\n$ fedcore --version\nfedcore 0\n```\nafter\n")
    monkeypatch.setattr(transcripts, "PAGES", [page])
    monkeypatch.setattr(transcripts, "ROOT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert transcripts.main(["--check"]) == 1 and "fedcore 0\n" in page.read_text()
    assert transcripts.main([]) == 0 and "fedcore 0\n" not in page.read_text()
    assert transcripts.main(["--check"]) == 0
    assert page.read_text().startswith("before\n```text\n$ fedcore --version\n")
    with pytest.raises(RuntimeError, match="exit code 2"):
        transcripts.printed("$ fedcore plan nothing.yaml", tmp_path)


@pytest.mark.slow
@pytest.mark.minutes
def test_every_transcript_is_what_its_command_prints():
    checked = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, timeout=10 * HANGS, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
