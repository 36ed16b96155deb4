"""Contents of a sweep's page in MLflow: columns of the list of cells, tables and metrics of cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from fedcore.directed_rounding import number_up
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.result import RunResult
from fedcore.experiment.sweep import SweepConfig
from flows.reports.settings import Settings, known_value
from flows.reports.silo_totals import SiloTotal, totals_as_json
from flows.sweep_files import sweep_id
from tasks.tracking.run_writer import Table, View, cell_tag

_FIRST = (
    "algorithm.name",
    "privacy.trust",
    "privacy.epsilon",
    "privacy.noise_multiplier",
    "privacy.whole_silo.epsilon",
)
"""Keys of the first columns, if cells differ in them; `settings`, seed and repetition follow."""
_MEASURES = {"test error": "test_error", "test RMSE": "test_rmse", "held-out error": "evaluation/error"}
"""Names of metrics by `RunResult.measure`."""


def sweep_view(config: SweepConfig, settings: Mapping[str, Settings], results: Sequence[RunResult] = ()) -> View:
    """MLflow's list of the sweep's cells: a column per varied key (`settings`) and per measure."""
    cells, sweep = config.cells(), sweep_id(config)
    varied = dict.fromkeys(key for values in settings.values() for key in values)
    chosen = () if config.patience is None else (config.patience.key,)
    keys = [key for key in _FIRST if _differ(cells, key)]
    keys += [part for key in (*varied, *chosen) for part in _parts(cells, key)]
    keys += [key for key in ("seed", "repetition") if _differ(cells, key)]
    measures = [_MEASURES[name] for name in dict.fromkeys(result.measure for result in results)]
    metrics = [*(measures or ["test_error", "test_rmse"]), "epsilon_accounted", "seconds"]
    metrics += [] if "algorithm.rounds" in keys else ["rounds"]
    columns = [f"params.`{key}`" for key in dict.fromkeys(keys)] + [f"metrics.`{name}`" for name in metrics]
    return View(sweep, sweep, tuple(columns), f"tags.`{cell_tag(sweep)}` = 'yes'")


def sweep_metrics(totals: Sequence[SiloTotal], results: Sequence[RunResult]) -> dict[str, float]:
    """Metrics of the sweep's own run: sums over all cells, at the silo with the largest account."""
    found: dict[str, float] = {"cells_finished": len(results)}
    if totals:
        worst = max(totals, key=lambda total: total.epsilon_private)
        found |= {"epsilon_all_cells": number_up(worst.epsilon_private), "delta_all_cells": number_up(worst.delta)}
        found["cells_without_noise"] = max(total.without_noise for total in totals)
    return {key: float(value) for key, value in found.items() if math.isfinite(value)}


def budget_table(totals: Sequence[SiloTotal]) -> Table:
    """Account of each silo over all cells, by columns."""
    rows = totals_as_json(totals)
    columns = {key: [row[key] for row in rows] for key in rows[0]} if rows else {}
    return as_printed(columns, "epsilon", "epsilon_of_noised_cells", "delta")


def as_printed(columns: Table, *spent: str) -> Table:
    """Columns for a page that shows all digits; `spent` ones, epsilons and deltas, are rounded up."""
    up = {key: [None if each is None else number_up(each) for each in columns.get(key, ())] for key in spent}
    return {key: up.get(key, values) for key, values in columns.items()}


def _differ(cells: Sequence[ExperimentConfig], key: str) -> bool:
    return len({repr(known_value(cell, key)) for cell in cells}) > 1


def _parts(cells: Iterable[ExperimentConfig], key: str) -> list[str]:
    """The key itself, or the keys inside it where its value is a section."""
    inner = [value for cell in cells if isinstance(value := known_value(cell, key), dict)]
    return list(dict.fromkeys(f"{key}.{part}" for value in inner for part in value)) or [key]
