"""Folder of the files of Prefect's page, in an installation of this account and in one of another."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from fedcore.home import Home
from flows.services.environment import server_environment
from flows.services.page_files import BUILT, REFERENCE, page_environment

KEY = "PREFECT_SERVER_UI_STATIC_DIRECTORY"


@pytest.fixture
def installation(tmp_path, monkeypatch) -> Path:
    """A stand-in for Prefect's package."""
    spec = importlib.util.spec_from_file_location(
        "prefect", tmp_path / "x.py", submodule_search_locations=[str(tmp_path)]
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    (tmp_path / "server").mkdir()
    return tmp_path / "server"


def denied(monkeypatch, *paths: Path) -> None:
    """Root may open all files, so the answer of the system is replaced."""
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) not in paths and allowed(path, mode))


def test_an_installation_of_this_account_needs_no_other_folder(installation, tmp_path):
    assert page_environment(Home(tmp_path)) == {}


def test_the_home_has_the_files_where_the_installation_cannot_be_written(installation, tmp_path, monkeypatch):
    denied(monkeypatch, installation)
    assert page_environment(Home(tmp_path)) == {KEY: str(tmp_path / "prefect" / "pages")}
    for name in BUILT:  # finished copies of its owner serve others, too
        (installation / name).mkdir()
        (installation / name / REFERENCE).touch()
    assert page_environment(Home(tmp_path)) == {}


@pytest.mark.parametrize("name", BUILT)
def test_the_home_has_the_files_where_a_copy_is_its_owners_alone(installation, tmp_path, monkeypatch, name):
    (installation / name).mkdir()
    (installation / name / REFERENCE).touch()
    denied(monkeypatch, installation / name / REFERENCE)
    assert server_environment(Home(tmp_path), False)[KEY] == str(tmp_path / "prefect" / "pages")
