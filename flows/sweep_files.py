"""A sweep on disk: its id, its kept config, the results of its finished cells. No engine is imported here."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import SCHEMA, canonical, check_schema, run_id
from fedcore.experiment.result import RunResult
from fedcore.experiment.sweep import SweepConfig
from fedcore.home import Home
from flows.reports.table import plot_path
from flows.runs import read_result, read_run
from flows.sweep_budget import sweep_totals, totals_as_json, totals_sentence
from tasks.result_file import jsonable, write_atomically


def sweep_id(config: SweepConfig) -> str:
    """The sweep's id: its name and 12 hex digits of the SHA-256 of its cells' canonical parameters, and of the patience
    that it has, if any."""
    chosen = [] if config.patience is None else [config.patience.model_dump_json()]
    cells = json.dumps([canonical(cell) for cell in config.cells()] + chosen)
    return f"{config.name}-{hashlib.sha256(cells.encode()).hexdigest()[:12]}"


def save_sweep(home: Home, config: SweepConfig) -> None:
    """Keeps the sweep's config, for `resume` and `report`."""
    kept = {"schema": SCHEMA, "sweep": config.model_dump(mode="json")}
    write_atomically(home.sweeps / sweep_id(config) / "sweep.json", jsonable(kept))


def load_saved(home: Home, sweep: str) -> SweepConfig:
    """A kept sweep. Raises InputError if its file is gone or damaged, or of an older schema."""
    path = home.sweeps / sweep / "sweep.json"
    try:
        kept = json.loads(path.read_bytes())
        schema, config = kept.get("schema"), kept.get("sweep")
    except (OSError, ValueError, AttributeError):
        raise _damaged(sweep, path) from None
    check_schema(f"sweep {sweep}", schema)
    try:
        return SweepConfig.model_validate(config)
    except ValueError:
        raise _damaged(sweep, path) from None


def _damaged(sweep: str, path: Path) -> InputError:
    return InputError(f"sweep {sweep}: {path} is missing or damaged; start it again with `fedcore sweep`")


def finished_results(home: Home, config: SweepConfig) -> list[RunResult]:
    """Results of the cells that are finished, in the order of the cells."""
    results = (read_result(home, run_id(cell)) for cell in config.cells())
    return [result for result in results if result is not None]


def all_complete(home: Home, cells: Sequence[ExperimentConfig]) -> bool:
    """Whether every cell is finished and MLflow has all of it."""
    records = (read_run(home, run_id(cell)) for cell in cells)
    return all(record is not None and record.complete for record in records)


def all_sweeps(home: Home) -> list[tuple[str, int, int]]:
    """Every kept sweep with its finished cells and all its cells."""
    sweeps = sorted(path.name for path in home.sweeps.iterdir()) if home.sweeps.is_dir() else []
    found = []
    for sweep in sweeps:
        with contextlib.suppress(InputError):
            config = load_saved(home, sweep)
            found.append((sweep, len(finished_results(home, config)), len(config.cells())))
    return found


@dataclass(frozen=True)
class SweepOutcome:
    """What is shown of a sweep: its id, its finished results, what all its cells cost the silos, where its plot is."""

    sweep: str
    cells: int
    results: list[RunResult]
    silos: list[dict[str, Any]]
    statement: str
    plot: str | None

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "results": [result.as_json() for result in self.results]}


def sweep_outcome(home: Home, config: SweepConfig, results: Sequence[RunResult]) -> SweepOutcome:
    """The outcome of a sweep with these finished results. Raises InputError if there is none."""
    sweep = sweep_id(config)
    if not results:
        raise InputError(f"sweep {sweep} has no finished cell yet")
    cells = config.cells()
    plot, totals = plot_path(home, sweep), sweep_totals(home, cells, results)
    return SweepOutcome(
        sweep, len(cells), list(results), totals_as_json(totals), totals_sentence(totals),
        str(plot) if plot.exists() else None,
    )  # fmt: skip
