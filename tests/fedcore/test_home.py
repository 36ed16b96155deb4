"""The entries of a folder that belong to a home."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from fedcore.data.sources.mnist import Flavour
from fedcore.data.sources.tables.catalogue import FileTable
from fedcore.home import Home

VARIABLES = ("FEDCORE_ANCHORS", "FEDCORE_POLICIES")


def paths(home: Home) -> dict[str, Path]:
    """Every path of a home, by attribute name."""
    found = {name: getattr(home, name) for name in dir(home) if not name.startswith("_")}
    return {name: path for name, path in found.items() if isinstance(path, Path) and name != "root"}


def test_each_path_that_a_home_names_is_a_part_of_it(tmp_path, monkeypatch):
    for each in VARIABLES:
        monkeypatch.delenv(each, raising=False)
    home = Home(tmp_path)
    for name, path in paths(home).items():
        (tmp_path / path.relative_to(tmp_path).parts[0]).touch()
        assert home.strange() == [], name
    assert len(paths(home)) >= 17


@pytest.mark.parametrize("name", [*get_args(Flavour), *get_args(FileTable), "insurance"])
def test_folders_of_public_data_are_parts_of_a_home(tmp_path, name):
    Home(tmp_path).public(name).mkdir()
    assert Home(tmp_path).strange() == []


def test_what_sqlite_and_locks_leave_beside_a_part_is_known(tmp_path):
    for name in ("mlflow.db-wal", "mlflow.db-shm", "mlflow.db.lock", "mlflow.db.making", ".writable-12"):
        (tmp_path / name).touch()
    assert Home(tmp_path).strange() == []


@pytest.mark.parametrize("name", ["thesis.tex", "runsheet", "run", "site.log", ".ssh", "my-runs"])
def test_what_no_part_writes_is_strange(tmp_path, name):
    (tmp_path / "runs").mkdir()
    (tmp_path / name).touch()
    assert Home(tmp_path).strange() == [name]


def test_data_that_is_not_public_has_no_folder_in_a_home(tmp_path):
    with pytest.raises(KeyError):
        Home(tmp_path).public("mine")


@pytest.mark.parametrize("variable, part", list(zip(VARIABLES, ("anchors", "policies"), strict=True)))
def test_a_variable_names_a_place_elsewhere(tmp_path, monkeypatch, variable, part):
    monkeypatch.delenv(variable, raising=False)
    assert getattr(Home(tmp_path), part) == tmp_path / part
    monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))
    assert getattr(Home(tmp_path), part) == tmp_path / "elsewhere"
