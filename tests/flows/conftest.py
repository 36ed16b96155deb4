"""Fixture that calls the command line in the process of a test."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flows.commands.app import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def fedcore(monkeypatch, capsys, tmp_path):
    """Calls the command line in this process; returns exit code, standard output and standard error."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path / "home"))

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedcore", *arguments])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return call
