"""Interleaved timing of variants: a block of rounds of each in turns, so that the machine's drift affects all equally.

Between its turns a variant's processes are suspended: six idle clusters and trackers would slow a round by up to a
third.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.variants import LOG, serve_variant

SETTLE = 0.3
"""Seconds of pause around a block, in which threads and servers finish their pending work."""

QUANTILES = {"p10": 0.1, "median": 0.5, "p90": 0.9}
RATIOS = {
    "in-process": "floor",
    "bare actors": "floor",
    "dask sites": "bare actors",
    "services": "durable dask sites",
    "stack, behind": "floor",
    "stack, each-round": "floor",
    "stack, defaults": "floor",
}


@dataclass
class Series:
    """Seconds of each round of a variant, block by block. `memory`: largest resident bytes after a block."""

    blocks: list[list[float]] = field(default_factory=list)
    memory: int = 0

    def quantile(self, q: float) -> float:
        return float(np.quantile([value for block in self.blocks for value in block], q))

    @property
    def spread(self) -> float:
        """Largest minus smallest median of a block, over their median."""
        medians = [statistics.median(block) for block in self.blocks]
        return (max(medians) - min(medians)) / statistics.median(medians)

    def ratio(self, base: Series) -> tuple[float, float, float]:
        """Median and quartiles over the cycles of the ratio of the block medians."""
        return _quartiles([mine / other for mine, other in self._medians(base)])

    def difference(self, base: Series) -> tuple[float, float, float]:
        """Median and quartiles over the cycles of the difference of the block medians, in seconds."""
        return _quartiles([mine - other for mine, other in self._medians(base)])

    def _medians(self, base: Series) -> list[tuple[float, float]]:
        pairs = zip(self.blocks, base.blocks, strict=True)
        return [(statistics.median(mine), statistics.median(other)) for mine, other in pairs]


def _quartiles(values: list[float]) -> tuple[float, float, float]:
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return float(middle), float(low), float(high)


def compare(
    silos: int, cycles: int, block: int, folder: Path, url: str, variants: Mapping[str, Callable[..., None]]
) -> dict[str, Any]:
    """ms per round of each variant, its ratio to its reference in `RATIOS`, and its memory, without a warm-up block.

    `floor_spread`: of the floor's blocks (`Series.spread`), which shows whether the machine was quiet; None without it.
    """
    planned = (cycles + 1) * block
    names = tuple(variants)
    series = {name: Series() for name in names}
    with contextlib.ExitStack() as stack:
        served = {}
        for name in names:
            home = folder / f"{name.replace(', ', '-').replace(' ', '-')}-{silos}"
            served[name] = stack.enter_context(_process(variants[name], home, silos, planned, url))
        for cycle in range(cycles + 1):
            for name in names:
                pipe, process = served[name]
                with _turn(process):
                    pipe.send(block)
                    times = pipe.recv()
                    series[name].memory = max(series[name].memory, _held(process))
                if cycle:
                    series[name].blocks.append(times)
    table = {}
    for name, mine in series.items():
        row: dict[str, Any] = {f"{key}_ms": mine.quantile(q) * 1e3 for key, q in QUANTILES.items()}
        row["memory_mb"] = mine.memory / 2**20
        base = RATIOS.get(name)
        if base in series:
            ratio, low, high = mine.ratio(series[base])
            row |= {"ratio_to": base, "ratio": ratio, "ratio_quartiles": [low, high]}
            row["extra_ms"] = [value * 1e3 for value in mine.difference(series[base])]
        table[name] = row
    spread = series["floor"].spread if "floor" in series else None
    return {"silos": silos, "cycles": cycles, "block": block, "floor_spread": spread, "variants": table}


@contextlib.contextmanager
def _turn(process: psutil.Process) -> Iterator[None]:
    """Lets a process and its children run inside the block, with a pause before and after it."""
    _each(process, psutil.Process.resume)
    time.sleep(SETTLE)
    try:
        yield
        time.sleep(SETTLE)
    finally:
        _each(process, psutil.Process.suspend)


def _held(process: psutil.Process) -> int:
    """Resident bytes of a process and its children."""
    total = 0
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += one.memory_info().rss
    return total


def _each(process: psutil.Process, do: Callable[[psutil.Process], None]) -> None:
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            do(one)


@contextlib.contextmanager
def _process(
    variant: Callable[..., None], home: Path, silos: int, planned: int, url: str
) -> Iterator[tuple[Any, psutil.Process]]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve_variant, args=(there, variant, home, silos, planned, url))
    process.start()
    there.close()  # so that `recv` raises EOFError if the process dies, and does not wait for ever
    try:
        try:
            here.recv()
        except EOFError:
            end = (home / LOG).read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{variant.__name__} with {silos} silos did not start: {end}") from None
        served = psutil.Process(process.pid)
        _each(served, psutil.Process.suspend)
        yield here, served
        _each(served, psutil.Process.resume)
        here.send(0)
        process.join(120)
    finally:
        if process.is_alive():
            _each(psutil.Process(process.pid), psutil.Process.resume)
            process.terminate()
        process.join(10)
        here.close()
