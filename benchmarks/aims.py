"""Aims of the benchmarks: ratios to a reference in the same run, and ms of a round with all engines."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import differences, newton
from benchmarks.local_steps import SILOS

AIMS = {
    ("in-process", 25): 1.5,
    ("in-process", 250): 1.25,
    ("in-process", 1000): 1.2,
    ("in-process", 10_000): 1.2,
    ("dask sites", 25): 1.25,
    ("dask sites", 250): 1.2,
}
LOCAL_AIMS = {("in-process", SILOS): 1.15, ("dask sites", SILOS): 1.15}
DIFFERENCE_AIMS = {("in-process", differences.SILOS): 1.3, ("dask sites", differences.SILOS): 1.25}
NEWTON_AIMS = {("in-process", newton.SILOS): 1.5, ("dask sites", newton.SILOS): 1.5}
STACK_MS = {"stack, behind": 9.0, "stack, defaults": 12.0}
SERVICES_MS = {4: 6.0, 25: 15.0}
"""ms that a round over silo services on loopback takes more than one on Dask, by number of silos."""
QUIET = 0.2
"""Largest spread of the floor's blocks on a quiet machine."""


def frozen(workload: ModuleType) -> str:
    """File and digest of a workload with its floor. Ratios compare only at the same digest."""
    file = Path(str(workload.__file__))
    return f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()[:8]}"


def aims_of(result: dict[str, Any]) -> list[tuple[str, float, float]]:
    """Label, measured value and aim of all parts with aims: ratios, and ms of the full stack and of services."""
    found = []
    parts: list[tuple[str, list[dict[str, Any]], dict[tuple[str, int], float]]] = [
        ("round", result.get("rounds", []), AIMS),
        ("local steps", [result["local"]] if "local" in result else [], LOCAL_AIMS),
        ("DIFF2", [result["differences"]] if "differences" in result else [], DIFFERENCE_AIMS),
        ("DP-FCRN", [result["newton"]] if "newton" in result else [], NEWTON_AIMS),
    ]
    for what, tables, aims in parts:
        for table in tables:
            for name, row in table["variants"].items():
                label = f"{what}, N = {table['silos']}: {name}"
                if (name, table["silos"]) in aims and "ratio" in row:
                    found.append((f"{label} / {row['ratio_to']}", row["ratio"], aims[name, table["silos"]]))
                if what == "round" and table["silos"] == 25 and name in STACK_MS:
                    found.append((f"{label}, ms", row["median_ms"], STACK_MS[name]))
    for table in result.get("services", {}).get("tables", []):
        more = table["variants"]["services"]["extra_ms"][0]
        label = f"services, N = {table['silos']}: ms more than on Dask"
        found.append((label, more, SERVICES_MS[table["silos"]]))
    return found
