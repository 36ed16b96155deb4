"""Prose of the site: short sentences, narrow lines; and the script that counts them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "scripts" / "prose.py"


def _loaded():
    spec = importlib.util.spec_from_file_location("prose", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["prose"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


prose = _loaded()
SITE = [page for page in prose.pages() if page.is_relative_to(ROOT / "docs")]


@pytest.mark.parametrize("page", SITE, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_sentence_of_the_site_is_long_and_no_line_wide(page):
    found = prose.measured(page.read_text())
    assert not found.long, found.long
    assert not found.wide


def test_the_site_is_about_as_long_as_a_person_reads():
    words = sum(prose.measured(page.read_text()).words for page in SITE)
    assert 10_000 < words < 25_000


LONG = " ".join(["word"] * 26)


@pytest.mark.parametrize(
    "text, long",
    [
        (f"{LONG}.", 1),
        (f"Short. {LONG}. Short.", 1),
        (f"- one\n- {LONG}.\n", 1),
        (f"term\n: {LONG}.\n", 1),
        (" ".join(["word"] * 13) + ".\n\n" + " ".join(["word"] * 13) + ".", 0),
        (" ".join(["word"] * 13) + ". " + " ".join(["Word"] * 13) + ".", 0),
        (" ".join(["word"] * 13) + ". fedcore " + " ".join(["word"] * 13) + ".", 0),
        (f"```text\n{LONG}\n```\n", 0),
        (f"| {LONG} |\n|---|\n", 0),
        (f"# {LONG}\n", 0),
        (f"<!-- {LONG} -->\n", 0),
        (f"See `{LONG}` there.", 0),
        (f"See [it]({LONG.replace(' ', '/')}) there.", 0),
        (f"---\ntitle: {LONG}\n---\n\nShort.", 0),
    ],
)
def test_long_sentences_are_found_in_prose_alone(text, long):
    assert len(prose.measured(text).long) == long


def test_words_and_wide_lines_are_counted():
    found = prose.measured("One two `three four` [five six](target.md).\n" + "x" * 101 + "\n\n| " + "y" * 120 + " |\n")
    assert (found.words, found.wide) == (6, 1)


def test_the_script_prints_pages_and_rooms():
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True)
    assert "docs/explanation/privacy-statement.md" in done.stdout and "fedcore/accounting" in done.stdout
    assert len(done.stdout.splitlines()) > len(SITE) + 20
