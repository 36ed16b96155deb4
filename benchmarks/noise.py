"""`python -m benchmarks.noise`: cost of noise, as multiples of NumPy's normals drawn in the same turns.

`normals` draws from an existing Philox generator. `simulated` is a simulated silo's noise and `grid` a guarded silo's.
Both include all steps of an answer: key from the sum, generator, noise added to the sum. Times are processor times,
which other processes disturb less.
"""

from __future__ import annotations

import os

os.environ |= {name: "1" for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

from fedcore.mechanisms.gaussian import SeededGaussian
from fedcore.mechanisms.grid import Grid, GridGaussian

AIM = 3.0
KEY, CONTEXT = b"k" * 32, b"c" * 34


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.noise", description=__doc__)
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 1_000, 100_000, 1_000_000])
    parser.add_argument("--turns", type=int, default=30, help="interleaved turns of each variant (default 30)")
    options = parser.parse_args()
    table = Table(title=f"one noised sum, median of {options.turns} turns; aim for grid: {AIM:g} x normals")
    for column in ("weights", "normals, µs", "simulated, µs", "grid, µs", "simulated, x", "grid, x", "quartiles"):
        table.add_column(column, justify="right")
    for dim in options.dims:
        seconds = measure(dim, options.turns)
        ratios = seconds / seconds[:, :1]
        normals, simulated, grid = np.median(seconds, axis=0) * 1e6
        low, high = np.quantile(ratios[:, 2], [0.25, 0.75])
        _, times, grid_times = np.median(ratios, axis=0)
        cells = [f"{normals:.1f}", f"{simulated:.1f}", f"{grid:.1f}", f"{times:.2f}", f"{grid_times:.2f}"]
        table.add_row(f"{dim:,}", *cells, f"{low:.2f} .. {high:.2f}")
    Console(width=None if sys.stdout.isatty() else 110).print(table)


def measure(dim: int, turns: int) -> np.ndarray:
    """Processor seconds per sum of `dim` weights, one row per turn: normals, simulated, grid."""
    ready = np.random.Generator(np.random.Philox(key=1))
    seeded, guarded = SeededGaussian(), GridGaussian()
    total = ready.standard_normal(dim)
    noise = 30.0
    grid = Grid.of(noise, clip=1.0, count=10_000, dim=dim)

    def simulated() -> None:
        drawn = seeded.draw(KEY, CONTEXT, total)
        drawn *= noise
        drawn += total

    variants: list[Callable[[], object]] = [
        lambda: ready.standard_normal(dim),
        simulated,
        lambda: guarded.noised(KEY, CONTEXT, total, grid),
    ]
    repeats = max(1, 200_000 // (dim + 1_000))
    seconds = np.empty((turns + 1, len(variants)))
    for turn in range(turns + 1):
        for at, variant in enumerate(variants):
            start = time.process_time()
            for _ in range(repeats):
                variant()
            seconds[turn, at] = (time.process_time() - start) / repeats
    # The first turn builds tables and fills caches, so it is dropped.
    return seconds[1:]


if __name__ == "__main__":
    sys.exit(main())
