"""Prose of the pages and of `conf`: short sentences, narrow lines; and the script that counts them."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "scripts" / "prose.py"


def _loaded(script: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(script.stem, script)
    module = importlib.util.module_from_spec(spec)
    sys.modules[script.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


prose = _loaded(SCRIPT)
docstrings = _loaded(SCRIPT.with_name("docstrings.py"))
GENERATED = {"fault-matrix.md"}
INDEFINITE = re.compile(r"\b(whoever|everybody|anybody|anyone|someone|no one)\b", re.IGNORECASE)
"""Parties without a name."""
SITE = [page for page in prose.pages() if page.is_relative_to(ROOT / "docs")]


CONF = sorted((ROOT / "conf").rglob("*.yaml"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", prose.pages(), ids=name)
def test_no_sentence_of_a_page_is_long_and_no_line_wide(page):
    found = prose.measured(page.read_text())
    assert not found.long, found.long
    assert not found.wide, f"above {prose.WIDEST} columns: {found.wide}"


WRITTEN = [page for page in prose.pages() if page.name not in GENERATED]


def excluded(paragraphs: Iterable[str]) -> list[str]:
    """Sentences with a word that the style excludes, or with a party without a name."""
    found = [sentence for paragraph in paragraphs for sentence in prose.sentences(paragraph)]
    return [each for each in found if docstrings.EXCLUDED.search(each) or INDEFINITE.search(each)]


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_no_sentence_of_a_page_has_a_verb_of_speech_or_a_party_without_a_name(page):
    assert not excluded(prose.blocks(page.read_text()))


def test_no_comment_of_a_config_has_a_verb_of_speech_or_a_party_without_a_name():
    assert not [each for file in CONF for each in excluded(comments(file.read_text()))]


@pytest.mark.parametrize("sentence", ["The silo says no.", "Nobody knows.", "Whoever reads it knows.", "It was told."])
def test_excluded_words_are_found_in_prose_and_not_in_code(sentence):
    assert excluded([sentence]) and not excluded([f"`{sentence}`"])


def test_the_pages_are_those_of_the_root_and_of_the_site():
    names = {name(page) for page in prose.pages()}
    assert {"README.md", "ARCHITECTURE.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md"} <= names
    assert len(names) > 60


@pytest.mark.parametrize("file", CONF, ids=name)
def test_no_comment_of_a_config_is_long_or_wide(file):
    text = file.read_text()
    found = [sentence for comment in comments(text) for sentence in prose.sentences(comment)]
    assert found
    assert not [each for each in found if len(each.split()) > prose.LONGEST]
    assert not [line for line in text.splitlines() if line.lstrip().startswith("#") and len(line) > prose.WIDEST]


def comments(text: str) -> Iterator[str]:
    """Comments of a YAML file as paragraphs. Keys that are commented out, and rows of tables, end a paragraph."""
    paragraph: list[str] = []
    for line in [*text.splitlines(), ""]:
        above = re.match(r"\s*#( {1,4}# ?| ?)(.*)$", line)
        key = above and "#" not in above[1] and re.match(r"  |\w+:$", above[2])
        if above and above[2] and not key:
            paragraph.append(above[2].strip())
            continue
        if paragraph:
            yield " ".join(paragraph)
        paragraph = []
        if beside := re.search(r"\S.*\s# (.*)$", above[2] if above else line):
            yield beside[1]


def test_comments_of_a_config_are_found_above_and_beside_keys():
    text = "# One.\n# two\na: 1  # three\n\n# data:\n#   # four\n#   # five\n#   b: 2  # six\n#      x    y    z    u\n"
    assert list(comments(text)) == ["One. two", "three", "four five", "six"]


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
    assert (found.words, len(found.wide)) == (6, 1)


def test_the_script_prints_pages_and_rooms():
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True)
    assert "docs/explanation/privacy-statement.md" in done.stdout and "fedcore/accounting" in done.stdout
    assert len(done.stdout.splitlines()) > len(SITE) + 20
