"""Costs of a sweep's cell and of its start, in CPU-seconds of all processes, by part.

The same sweep runs with few and with many seeds, each in a new home. The difference in cost, divided by the difference
in cells, is the cost of a cell; the rest is the cost of the start.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.processes import Cost, cost

FEDCORE = [sys.executable, "-m", "flows.commands.app"]
CONF = Path(__file__).resolve().parents[1] / "conf"
SWEEP = CONF / "sweep" / "digits.yaml"
RUN = CONF / "experiment" / "digits.yaml"
ENGINES: dict[str, tuple[str, ...]] = {
    "all engines": (),
    "in process, no MLflow": ("cluster.backend=in-process", "tracking.mlflow=false"),
}
CELLS_PER_SEED = 17
"""Cells of `SWEEP` for each seed."""


def sweep_cost(engines: str, few: int, many: int, home: Path) -> dict[str, Any]:
    """CPU-seconds per cell and per start, by part, of a sweep with `few` and with `many` seeds."""
    costs = {seeds: _sweep(engines, seeds, home / f"{engines.replace(' ', '-')}-{seeds}") for seeds in (few, many)}
    more = CELLS_PER_SEED * (many - few)
    small, large = costs[few], costs[many]
    parts = sorted({*small.parts, *large.parts})
    per_cell = {part: (large.parts.get(part, 0.0) - small.parts.get(part, 0.0)) / more for part in parts}
    at_start = {part: small.parts.get(part, 0.0) - CELLS_PER_SEED * few * per_cell[part] for part in parts}
    return {
        "engines": engines,
        "cells": CELLS_PER_SEED * many,
        "wall": large.wall,
        "cpu": large.cpu,
        "peak_mb": large.peak,
        "cpu_per_cell": (large.cpu - small.cpu) / more,
        "wall_per_cell": (large.wall - small.wall) / more,
        "seen_share": large.seen / large.cpu,
        "per_cell": {" / ".join(part): value for part, value in per_cell.items()},
        "at_start": {" / ".join(part): value for part, value in at_start.items()},
    }


def start_cost(home: Path, overrides: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Costs of the first run in a new home and of the second: wall and CPU-seconds, by part."""
    found = []
    for number, name in enumerate(("first", "second")):
        made = cost([*FEDCORE, "run", str(RUN), f"repetition={number}", *overrides], home, [*FEDCORE, "down"])
        found.append(_row(name, made))
    return found


def _sweep(engines: str, seeds: int, home: Path) -> Cost:
    home.mkdir(parents=True, mode=0o700)
    path = home.parent / f"{home.name}.yaml"
    path.write_text(yaml.safe_dump(with_seeds(seeds)))
    return cost([*FEDCORE, "sweep", str(path), *ENGINES[engines]], home, [*FEDCORE, "down"])


def with_seeds(seeds: int) -> dict[str, Any]:
    """`SWEEP` with this number of seeds and an absolute `base`, so that the file may be anywhere."""
    sweep: dict[str, Any] = yaml.safe_load(SWEEP.read_text())
    sweep["base"] = str((SWEEP.parent / sweep["base"]).resolve())
    for section in (sweep, *sweep["variants"]):
        if "grid" in section:
            section["grid"]["seed"] = list(range(seeds))
    return sweep


def _row(name: str, made: Cost) -> dict[str, Any]:
    parts = {" / ".join(part): seconds for part, seconds in sorted(made.parts.items())}
    return {
        "start": name,
        "wall": made.wall,
        "cpu": made.cpu,
        "seen_share": made.seen / made.cpu,
        "peak_mb": made.peak,
        "parts": parts,
    }
