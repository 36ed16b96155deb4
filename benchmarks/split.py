"""The parts of a full-stack round's time, each by its own clock, and the remainder.

- orchestration: Prefect's task engine, from the task's call to the function's start, and from its end to the return
- checkpoint: collecting receipts; saving them with state, query and metrics, or only queueing them if written behind
- tracking: passing metrics to the MLflow writer's thread
- server: folding messages, the next query, evaluation on test data, sorting of answers
- transport: from the driver's call to the receipt at the last site to answer, and from its answer to the driver
- ledger: mean over the sites of the time in their silos' ledgers
- computation: mean over the sites of their busy time minus the ledger
- waiting: busy time of the last site to answer, minus the mean over the sites
- remainder: wall clock minus all of these
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks import workload
from benchmarks.clocks import Stopwatch, TimedHolder, Visit, now, put_clocks, timed_holder
from benchmarks.variants import run_stack
from tasks.workers import places

PARTS = ("computation", "waiting", "transport", "ledger", "tracking", "orchestration", "checkpoint", "server")


def split_round(silos: int, rounds: int, warm_up: int, home: Path, url: str, checkpoint: Any) -> dict[str, Any]:
    """Means over `rounds` rounds in a row (ms) after `warm_up` rounds, with the wall clock's median."""
    watch, walls, sites = Stopwatch(), [], {}

    def prepared(training: Any) -> None:
        sites["calls"], sites["places"] = training.backend._at, training.backend._places
        put_clocks(training, watch)

    def serve(step: Any) -> None:
        for _ in range(warm_up + rounds):
            began = now()
            step()
            walls.append((began, now()))
        calls = sites["calls"]
        sites["visits"] = [calls.result(place, calls.start(place, "visits", ())) for place in sites["places"]]

    with patch.multiple(places, held=timed_holder, Holder=TimedHolder):
        run_stack(serve, home, workload.config(silos, warm_up + rounds, checkpoint), url, prepared)
    rows = [_parts(wall, visits, watch) for wall, *visits in zip(walls, *sites["visits"], strict=True)][warm_up:]
    wall_clock = [row["wall"] * 1e3 for row in rows]
    means = {part: statistics.fmean(row[part] for row in rows) * 1e3 for part in (*PARTS, "remainder")}
    return {
        "silos": silos,
        "rounds": rounds,
        "ledger": "memory",
        "checkpoint": checkpoint,
        "wall_median_ms": statistics.median(wall_clock),
        "wall_p90_ms": float(np.quantile(wall_clock, 0.9)),
        "wall_mean_ms": statistics.fmean(wall_clock),
        "mean_ms": means,
        "remainder_share": means["remainder"] / statistics.fmean(wall_clock),
        "remainder_largest_share": max(abs(row["remainder"]) / row["wall"] for row in rows),
    }


def _parts(wall: tuple[float, float], visits: list[Visit], watch: Stopwatch) -> dict[str, float]:
    """Seconds of each part of one round, from the clocks' intervals within it."""
    if len({(visit.phase, visit.round) for visit in visits}) != 1:
        raise RuntimeError(f"clocks of different rounds were put together: {visits}")
    began, ended = wall
    ((entered, left),) = _inside(watch, "advance", wall)
    ((sent, received),) = _inside(watch, "gather", wall)
    busy = [visit.done - visit.received for visit in visits]
    # The last site to answer is the round's critical path. No time is counted twice, so the remainder shows every gap.
    last = max(visits, key=lambda visit: visit.done)
    ledger = statistics.fmean(visit.ledger for visit in visits)
    parts = {
        "orchestration": (entered - began) + (ended - left),
        "checkpoint": watch.within("checkpoint", *wall),
        "tracking": watch.within("tracking", *wall),
        "server": watch.within("server", *wall) + watch.within("ask", *wall) - (received - sent),
        "transport": (last.received - sent) + (received - last.done),
        "ledger": ledger,
        "computation": statistics.fmean(busy) - ledger,
        "waiting": (last.done - last.received) - statistics.fmean(busy),
    }
    return parts | {"wall": ended - began, "remainder": ended - began - sum(parts.values())}


def _inside(watch: Stopwatch, name: str, wall: tuple[float, float]) -> list[tuple[float, float]]:
    return [call for call in watch.calls[name] if wall[0] <= call[0] and call[1] <= wall[1]]
