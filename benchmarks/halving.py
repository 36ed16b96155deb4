"""Successive halving of a sweep's cells by training loss; it chose the settings of studies/conf/diff2.

    python -m benchmarks.halving studies/conf/diff2/tuning.yaml data.table=diabetes --rungs 100 500 2000

A candidate is a cell without its seed. All candidates run to the first rung, on every seed. The best fraction, by least
training loss so far (mean over seeds), goes on to the next rung. Noise is always that of the whole run.
NOT PRIVATE: it reads raw records, as the papers' own tuning does; its seeds are those of no figure.
Source: Jamieson and Talwalkar 2016, Non-stochastic best arm identification and hyperparameter optimization.
"""

from __future__ import annotations

import os

os.environ.update({name: "1" for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")})

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.experiment.sweep import load_sweep
from fedcore.federation.rounds import rounds
from fedcore.home import Home
from fedcore.state import State

EVERY = 20
"""Rounds between two evaluations of the training loss, as in the paper's rule."""


@dataclass
class Run:
    """One cell with its progress. `least`: least training loss so far; infinite before the first evaluation."""

    config: ExperimentConfig
    least: float = math.inf
    done: int = 0
    _states: Iterator[Any] | None = field(default=None, repr=False)

    def advance(self, until: int, home: Home) -> float:
        """The least training loss of the first `until` rounds; for a diverged run, of those before it diverged."""
        if self._states is None:
            experiment = Experiment.prepare(self.config, home.silos)
            self._backend = experiment.in_process(home.ledger_folders)
            self._backend.open()
            self._experiment = experiment
            start: State = experiment.context.method.init(experiment.start())
            self._states = rounds(experiment.context, start, self._backend.ask)
        try:
            while self.done < until:
                _, _, state = next(self._states)
                self.done += 1
                if self.done % EVERY == 0:
                    self.least = min(self.least, self._loss(state))
        except InputError:
            self.done = 10**9
        return self.least

    def _loss(self, state: State) -> float:
        w = self._experiment.context.method.output(state)
        parts = self._backend.simulated(self._experiment.run, w)
        loss = sum(part[1] for part in parts) / sum(part[0] for part in parts)
        return loss if math.isfinite(loss) else math.inf

    def free(self) -> None:
        """Frees the run's silos."""
        self._states = self._backend = self._experiment = None  # type: ignore[assignment]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.halving", description=__doc__.split("\n")[0])
    parser.add_argument("sweep", type=Path)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--rungs", type=int, nargs="+", default=[100, 500, 2000])
    parser.add_argument("--keep", type=float, default=0.25, help="part of the candidates that goes on (default 1/4)")
    parser.add_argument("--seeds", type=int, nargs="+", help="of every candidate (default: the sweep's own)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sweep = load_sweep(options.sweep, options.overrides).over({"seed": options.seeds} if options.seeds else {})
    cells = sweep.cells(str(options.sweep))
    groups: dict[str, list[ExperimentConfig]] = {}
    for cell in cells:
        groups.setdefault(_method(cell), []).append(cell)
    with get_context("spawn").Pool(2) as pool:
        calls = [(mine, options.rungs, options.keep) for mine in groups.values()]
        found = dict(zip(groups, pool.starmap(halve, calls), strict=True))
    for method, ranked in found.items():
        for row in ranked[:5]:
            print(f"{method}: {row['loss']:.5g} after {row['rounds']} rounds, {json.dumps(row['settings'])}")
    seconds = sum(row["seconds"] for ranked in found.values() for row in ranked)
    print(f"{sum(map(len, found.values()))} candidates, {seconds / 3600:.2f} core-hours")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def halve(cells: list[ExperimentConfig], rungs: list[int], keep: float) -> list[dict[str, Any]]:
    """All candidates of these cells, sorted by rounds done (most first), then by loss (least first)."""
    home = Home.current().make()
    candidates: dict[str, list[Run]] = {}
    for cell in cells:
        candidates.setdefault(cell.model_dump_json(exclude={"seed", "repetition"}), []).append(Run(cell))
    going, seconds, losses = dict(candidates), dict.fromkeys(candidates, 0.0), dict.fromkeys(candidates, math.inf)
    for rung in rungs:
        for key, runs in going.items():
            began = time.process_time()
            losses[key] = statistics.fmean(run.advance(rung, home) for run in runs)
            seconds[key] += time.process_time() - began
        ranked = sorted(going, key=lambda key: losses[key])
        best = [key for key in ranked if math.isfinite(losses[key])][: max(1, math.ceil(keep * len(ranked)))]
        for key in going.keys() - set(best if rung != rungs[-1] else ranked):
            for run in going[key]:
                run.free()
        going = {key: going[key] for key in best}
    rows = [
        {
            "settings": _settings(runs[0].config),
            "loss": losses[key],
            "rounds": min(runs[0].done, rungs[-1]),
            "seconds": seconds[key],
            "losses": [run.least for run in runs],
        }
        for key, runs in candidates.items()
    ]
    return sorted(rows, key=lambda row: (-row["rounds"], row["loss"]))


def _method(cell: ExperimentConfig) -> str:
    """The group of a cell: GD, DP-GD or its method, with trust and epsilon. Each group is halved on its own."""
    period = getattr(cell.algorithm, "period", None)
    kind = "GD" if cell.privacy.trust == "none" else "DP-GD" if period == 1 else cell.algorithm.name
    return f"{kind}, {cell.privacy.trust}, epsilon {cell.privacy.epsilon}"


def _settings(cell: ExperimentConfig) -> dict[str, Any]:
    method: Any = cell.algorithm
    keys = ("step", "slope", "period", "split", "local_steps", "batch")
    found = {key: getattr(method, key) for key in keys if hasattr(method, key)}
    return {"clip": cell.model.clip, **found}


if __name__ == "__main__":
    main()
