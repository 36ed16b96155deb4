"""A sweep of 1,020 cells whose driver is killed at half: its resume ends with the bits of an undisturbed sweep."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from benchmarks.sweep_cost import CELLS_PER_SEED, with_seeds

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.minutes, pytest.mark.hours]
FEDCORE = [sys.executable, "-m", "flows.commands.app"]
SEEDS = 60
MINUTES = 20 * 60
"""Seconds for one sweep of `SEEDS` seeds; it takes two minutes on an idle machine."""


def start(home: Path, *arguments: str) -> subprocess.Popen[bytes]:
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    environment = {**os.environ, "FEDCORE_HOME": str(home)}
    return subprocess.Popen([*FEDCORE, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def outcome(home: Path, *arguments: str) -> dict:
    process = start(home, *arguments, "--json")
    out, _ = process.communicate(timeout=MINUTES)
    assert process.returncode == 0
    return json.loads(out)


def models(home: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in (home / "runs").glob("*/model.json")}


def points(home: Path) -> dict[str, int]:
    """MLflow's points by key. A point that is there twice fails the test."""
    db = sqlite3.connect(f"file:{home / 'mlflow.db'}?mode=ro", uri=True)
    rows = db.execute("SELECT key, count(*), count(DISTINCT run_uuid || '/' || step) FROM metrics GROUP BY key")
    found = {key: (count, different) for key, count, different in rows}
    db.close()
    assert all(count == different for count, different in found.values()), found
    return {key: count for key, (count, _) in found.items()}


@pytest.fixture
def sweep(tmp_path) -> str:
    path = tmp_path / "thousand.yaml"
    path.write_text(yaml.safe_dump(with_seeds(SEEDS)))
    return str(path)


def test_a_sweep_killed_at_half_ends_with_the_bits_of_an_undisturbed_one(tmp_path, sweep):
    cells = CELLS_PER_SEED * SEEDS
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    whole = outcome(undisturbed, "sweep", sweep)

    process = start(killed, "sweep", sweep)
    until = time.monotonic() + MINUTES
    while len(models(killed)) < cells // 2:
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.2)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=MINUTES)
    before = models(killed)
    assert cells // 2 <= len(before) < cells
    resumed = outcome(killed, "sweep", sweep)

    assert len(models(undisturbed)) == cells and models(killed) == models(undisturbed)
    assert before.items() <= models(killed).items()
    assert [row["test_error"] for row in resumed["results"]] == [row["test_error"] for row in whole["results"]]
    assert points(killed) == points(undisturbed) and sum(points(killed).values()) > 100 * cells
    for home in (undisturbed, killed):
        assert start(home, "down").wait(timeout=MINUTES) == 0
