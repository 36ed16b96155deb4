"""Names of code on the pages exist: modules, classes, their members, and files."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("fedcore", "tasks", "flows", "studies", "benchmarks", "tests")
SITE = sorted(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *SITE]
DOTTED = re.compile(rf"(?:{'|'.join(ROOMS)})(?:\.\w+)+")
FILE = re.compile(rf"(?:{'|'.join(ROOMS)}|conf|docs)/[\w./-]+")
CLASS = re.compile(r"([A-Z]\w*[a-z]\w*)(?:\.(\w+))?(?:\(.*\))?")
FOREIGN = {"Host", "Origin", "Code"}
"""Spans in capitals that are no class: HTTP headers."""


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def spans(page: Path) -> list[str]:
    """Code spans of a page, outside of its blocks; one that is broken over two lines is joined."""
    prose = re.sub(r"^(```+)[^\n]*\n.*?^\1$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose)]


def exists(dotted: str) -> bool:
    """True if a module, or an object in a module, has this dotted name."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        base = ROOT.joinpath(*parts[:length])
        if not (base.is_dir() or base.with_suffix(".py").is_file()):
            continue
        found = importlib.import_module(module)
        for part in parts[length:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@cache
def classes() -> dict[str, set[str]]:
    """Classes of the product by name, each with its fields, methods and the names that its methods set."""
    found: dict[str, set[str]] = {}
    for room in ROOMS[:4]:
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, set()).update(_members(node))
    return found


def _members(node: ast.ClassDef) -> set[str]:
    members = set()
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            members.add(child.name)
        elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            members.add(child.target.id)
        elif isinstance(child, ast.Assign):
            members.update(target.id for target in child.targets if isinstance(target, ast.Name))
    return members


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_names_of_code_on_a_page_exist(page):
    shown = set(re.findall(r"^class (\w+)", page.read_text(), re.MULTILINE))
    for span in spans(page):
        if DOTTED.fullmatch(span):
            assert exists(span), f"{name(page)} names {span}"
        elif FILE.fullmatch(span):
            assert (ROOT / span).exists(), f"{name(page)} names {span}"
        elif (match := CLASS.fullmatch(span)) and match[1] not in shown | FOREIGN:
            assert match[1] in classes(), f"{name(page)} names {span}, and no class is called so"
            assert not match[2] or match[2] in classes()[match[1]], f"{name(page)} names {span}"


def test_modules_files_and_classes_are_found_on_the_pages():
    """So that the patterns above match what writers write."""
    found = [span for page in PAGES for span in spans(page)]
    assert sum(bool(DOTTED.fullmatch(span)) for span in found) >= 3
    assert sum(bool(FILE.fullmatch(span)) for span in found) >= 30
    assert sum(bool(CLASS.fullmatch(span)) for span in found) >= 10


@pytest.mark.parametrize(
    "dotted, there",
    [
        ("fedcore.train", True),
        ("fedcore.silo.columns.group", True),
        ("fedcore.audit.audited_silo.AuditedSilo", True),
        ("fedcore.ledger.state.LedgerState", True),
        ("fedcore.audit.subject.Subject", False),
        ("fedcore.silo.question.RoundQuestion.arrays", True),
        ("fedcore.silo.question.Asked", False),
    ],
)
def test_a_dotted_name_is_looked_up_in_modules_and_their_objects(dotted, there):
    assert exists(dotted) is there


@pytest.mark.parametrize(
    "page, owner, least",
    [
        ("add-answer.md", "fedcore.silo.answers.answer.Answer", 10),
        ("add-loss.md", "fedcore.losses.traits.PredictorLoss", 11),
        ("add-method.md", "fedcore.algorithms.method.Method", 6),
    ],
)
def test_members_in_the_table_of_a_guide_are_those_of_the_interface(page, owner, least):
    text = (ROOT / "docs" / "how-to" / page).read_text()
    header = re.search(r"^\| (?:member|part) \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    named = {word for row in header[1].splitlines() for word in re.findall(r"`(\w+)`", row.split("|")[1])}
    module, _, owned = owner.rpartition(".")
    ancestors = getattr(importlib.import_module(module), owned).__mro__
    known = {each for ancestor in ancestors for each in [*vars(ancestor), *vars(ancestor).get("__annotations__", {})]}
    assert len(named) >= least
    assert named <= known, named - known


def test_traits_in_the_guide_to_methods_are_those_of_methods():
    traits = importlib.import_module("fedcore.algorithms.method").Traits
    listed = re.search(r"Override those that differ: (.*?)\.\n", (ROOT / "docs/how-to/add-method.md").read_text(), re.S)
    assert set(re.findall(r"`(\w+)`", listed[1])) <= set(vars(traits)) | set(traits.__annotations__)
