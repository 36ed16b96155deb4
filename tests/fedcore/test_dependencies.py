"""pyproject.toml names the code's imports, and constraints.txt pins one version of each within the bounds."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PRODUCT = ("fedcore", "tasks", "flows")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SILO = [Requirement(line) for line in PROJECT["dependencies"]]
SERVICE = [Requirement(line) for line in PROJECT["optional-dependencies"]["silo"]]
RELAY = [Requirement(line) for line in PROJECT["optional-dependencies"]["relay"]]
WORKFLOW = [Requirement(line) for line in PROJECT["optional-dependencies"]["workflow"]]
PLAIN = SILO + WORKFLOW
DEV = [
    Requirement(line)
    for extra in ("docs", "dev")
    for line in PROJECT["optional-dependencies"][extra]
    if not line.startswith("fedcore-dp")
]
PINNED = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines()]
PINS = {  # of this Python: a few packages are needed by some versions only
    canonicalize_name(pin.name): Version(str(pin.specifier).removeprefix("=="))
    for pin in PINNED
    if pin.marker is None or pin.marker.evaluate()
}


brought_by = cache(packages_distributions)


@cache
def imported(folders: tuple[str, ...]) -> dict[str, set[str]]:
    """Top-level modules of others that files below these folders import, wherever in the file, with the files."""
    found: dict[str, set[str]] = {}
    if len(folders) > 1:
        for folder in folders:
            for module, files in imported((folder,)).items():
                found.setdefault(module, set()).update(files)
        return found
    for path in (ROOT / folders[0]).rglob("*.py"):
        for node in statements(ast.parse(path.read_text())):
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules = [node.module or ""]
            for module in {module.partition(".")[0] for module in modules}:
                if module not in sys.stdlib_module_names:
                    found.setdefault(module, set()).add(str(path.relative_to(ROOT)))
    return found


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All statements of a file, without their expressions, which hold no import."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for field in ("body", "orelse", "handlers", "finalbody", "cases"):
            below = getattr(node, field, [])
            waiting += below if isinstance(below, list) else []


def undeclared(folders: tuple[str, ...], own: set[str], requirements: list[Requirement]) -> dict[str, set[str]]:
    """Modules that no requirement brings by itself, with the files that import them."""
    named = {canonicalize_name(requirement.name) for requirement in requirements}
    return {
        module: files
        for module, files in imported(folders).items()
        if module not in own and named.isdisjoint(map(canonicalize_name, brought_by().get(module, [])))
    }


def test_the_product_imports_only_what_a_plain_install_brings_by_name():
    assert undeclared(PRODUCT, set(PRODUCT), PLAIN) == {}


def test_the_science_imports_only_what_a_silo_installs():
    """Without the extra there is no prefect, dask or mlflow, and none of their dependencies."""
    assert undeclared(("fedcore",), {"fedcore"}, SILO) == {}
    names = {canonicalize_name(requirement.name) for requirement in WORKFLOW}
    assert {"prefect", "dask", "distributed", "mlflow"} <= names
    assert names.isdisjoint(canonicalize_name(requirement.name) for requirement in SILO)
    assert names.isdisjoint(reached(SILO))


def test_silo_and_relay_install_no_engine_and_what_they_share_has_one_bound():
    engines = {"prefect", "dask", "distributed", "mlflow"}
    assert [str(each) for each in SERVICE + RELAY if str(each) not in map(str, WORKFLOW)] == []
    assert (engines | {"fastapi", "uvicorn"}).isdisjoint(reached(SILO + SERVICE))
    assert engines.isdisjoint(reached(SILO + RELAY))


def test_tests_and_benchmarks_import_only_what_an_install_with_dev_brings_by_name():
    own = {*PRODUCT, "studies", "tests", "benchmarks", "extension", "prose"} | {
        path.stem for path in (ROOT / "tests").glob("*/*.py")
    }
    assert undeclared(("studies", "tests", "benchmarks", "docs"), own, PLAIN + DEV) == {}


def test_a_plain_dependency_that_is_not_imported_has_a_reason_beside_it():
    used = {canonicalize_name(name) for module in imported(PRODUCT) for name in brought_by().get(module, [])}
    lines = re.findall(r'^  "(.*)",(.*)$', (ROOT / "pyproject.toml").read_text().partition("\ndocs = [")[0], re.M)
    extras = PROJECT["optional-dependencies"]
    listed = [line for extra in ("silo", "relay", "workflow") for line in extras[extra]]
    assert [line for line, _ in lines] == PROJECT["dependencies"] + listed
    without = [line for line, comment in lines if "#" not in comment]
    assert [line for line in without if canonicalize_name(Requirement(line).name) not in used] == []


@pytest.mark.parametrize("requirement", PLAIN + DEV, ids=lambda requirement: requirement.name)
def test_the_pin_and_what_is_installed_lie_within_the_bounds(requirement):
    pin = PINS[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(pin), f"constraints.txt pins {requirement.name} {pin}"
    installed = version(requirement.name)
    assert requirement.specifier.contains(installed), f"{requirement.name} {installed} is installed"


def reached(requirements: list[Requirement]) -> set[str]:
    """Names of all packages that pip installs here for these requirements, from installed metadata."""
    found: set[tuple[str, str]] = set()

    def walk(requirement: Requirement) -> Iterator[Requirement]:
        for extra in ("", *requirement.extras):
            key = (canonicalize_name(requirement.name), extra)
            if key not in found:
                found.add(key)
                for needed in map(Requirement, distribution(requirement.name).requires or []):
                    if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                        yield needed

    waiting = list(requirements)
    while waiting:
        try:
            waiting += walk(waiting.pop())
        except PackageNotFoundError as error:
            raise AssertionError(f"{error} is not installed") from None
    return {name for name, _ in found}


def test_all_that_is_installed_is_pinned_and_no_pin_is_left_over():
    assert reached(PLAIN) - set(PINS) == set(), "a plain install takes whatever is newest of these"
    assert reached(PLAIN + DEV) == set(PINS)
