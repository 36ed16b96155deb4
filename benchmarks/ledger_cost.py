"""Cost of a ledger's commits: per release, and per round of a site whose silos commit one after the other."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import workload
from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Charge
from fedcore.ledger.ledger import Ledger, Row
from fedcore.ledger.memory import MemoryLedger
from fedcore.ledger.sqlite import SqliteLedger


def ledger_cost(silos: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Commits of `rounds` rounds at one site of `silos` silos: median and p99 of a commit and of a round (ms)."""
    names = [f"silo-{index:03d}" for index in range(silos)]
    kinds: dict[str, list[Ledger]] = {
        "memory": [MemoryLedger(name) for name in names],
        "sqlite": [SqliteLedger(name, folder / f"{name}.sqlite", folder / f"{name}.anchor") for name in names],
    }
    return {"silos": silos, "rounds": rounds} | {kind: _commits(kinds[kind], rounds) for kind in kinds}


def _commits(ledgers: list[Ledger], rounds: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    event = GaussianRelease(0, workload.RECORDS, 1e-3, 1e-2)
    for ledger in ledgers:
        ledger.open_run("bench", "plan", b"k" * 32, Charge.of([event], 1e-6), None)
    commits, whole = [], []
    for round in range(1, rounds + 1):
        query = hashlib.sha256(str(round).encode()).digest()
        payloads = [rng.standard_normal(workload.FEATURES).tobytes() for _ in ledgers]
        rows = [Row(1, round, query, event, hashlib.sha256(data).digest(), data) for data in payloads]
        began = time.perf_counter()
        for ledger, row in zip(ledgers, rows, strict=True):
            at = time.perf_counter()
            ledger.find("bench", 1, round)
            ledger.commit("bench", row)
            commits.append(time.perf_counter() - at)
        whole.append(time.perf_counter() - began)
    for ledger in ledgers:
        ledger.close()
    return {
        "commit_median_ms": float(np.median(commits)) * 1e3,
        "commit_p99_ms": float(np.quantile(commits, 0.99)) * 1e3,
        "round_median_ms": float(np.median(whole)) * 1e3,
        "round_p99_ms": float(np.quantile(whole, 0.99)) * 1e3,
    }
