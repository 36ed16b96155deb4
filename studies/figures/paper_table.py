"""Reproduction of a published table: accuracy by two keys of the experiment, beside the paper's numbers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from fedcore.directed_rounding import in_full, shown_up
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.result import RunResult
from fedcore.hyperparameters import Section
from flows.reports.settings import value_at
from flows.reports.table import markdown_table
from studies.figures.formats import printed
from tasks.result_file import jsonable, write_atomically


class TableConfig(Section):
    """The keys (with dots) of a table's rows and columns, and the paper's numbers, row by row."""

    rows: str
    columns: str
    printed_columns: tuple[Any, ...] = ()
    """Values of the columns' key, in the order of the published numbers."""
    published: dict[str, tuple[float | None, ...]] = Field(default_factory=dict)
    """Accuracy in percent, by the row's value."""
    published_rounds: dict[str, tuple[int | None, ...]] = Field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One cell: mean and deviation over its runs of the accuracy in percent, averaged over the last tenth of rounds."""

    row: Any
    column: Any
    accuracies: tuple[float, ...]
    rounds: int
    accounted: float | None
    honest_sampling: float | None
    published: float | None
    published_rounds: int | None
    trials: tuple[tuple[int, int], ...] = ()
    """Seed and repetition of each run, in the order of the accuracies."""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracies)

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None


def table_cells(table: TableConfig, cells: Sequence[ExperimentConfig], results: Sequence[RunResult]) -> list[Cell]:
    """One cell per pair of values, in the order of the runs. Raises InputError for runs without test errors."""
    groups: dict[tuple[Any, Any], dict[tuple[int, int], RunResult]] = {}
    for config, result in zip(cells, results, strict=True):
        cell = value_at(config, table.rows), value_at(config, table.columns)
        groups.setdefault(cell, {})[config.seed, config.repetition] = result
    found = []
    for (row, column), by_trial in groups.items():
        runs = list(by_trial.values())
        errors = [run.test_error_tail for run in runs if run.test_error_tail is not None]
        if len(errors) < len(runs):
            raise InputError("a table of accuracies needs public test data of several classes")
        spent = [run.epsilon_accounted for run in runs if run.epsilon_accounted is not None]
        drawn = [run.epsilon_honest_sampling for run in runs if run.epsilon_honest_sampling is not None]
        found.append(
            Cell(
                row,
                column,
                tuple(100.0 * (1.0 - error) for error in errors),
                max(run.rounds for run in runs),
                max(spent, default=None),
                max(drawn, default=None),
                _published(table, table.published, row, column),
                _published(table, table.published_rounds, row, column),
                tuple(by_trial),
            )
        )
    return found


def draw_table(folder: Path, table: TableConfig, cells: Sequence[Cell]) -> None:
    """Writes table.md and table.json into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [asdict(cell) | {"mean": cell.mean, "deviation": cell.deviation} for cell in cells]
    write_atomically(folder / "table.json", jsonable({"rows": table.rows, "columns": table.columns, "cells": rows}))
    rounds = " (published)" if table.published_rounds else ""
    accuracy = " (published)" if table.published else ""
    parts = [
        (f"Rounds{rounds}", lambda cell: _beside(f"{cell.rounds}", cell.published_rounds)),
        (f"Test accuracy in percent, last tenth of rounds{accuracy}", _accuracy),
        ("Accounted epsilon towards the server, and under honest silo sampling", _epsilons),
    ]
    text = "".join(f"{title}:\n\n{_markdown(table, cells, show)}\n" for title, show in parts)
    write_atomically(folder / "table.md", text.encode())


def _markdown(table: TableConfig, cells: Sequence[Cell], show: Any) -> str:
    by_place = {(cell.row, cell.column): cell for cell in cells}
    rows = list(dict.fromkeys(cell.row for cell in cells))
    columns = {table.rows.rpartition(".")[2]: [str(row) for row in rows]}
    for column in dict.fromkeys(cell.column for cell in cells):
        mine = (by_place.get((row, column)) for row in rows)
        head = f"{table.columns.rpartition('.')[2]} {column}"
        columns[head] = ["-" if cell is None else show(cell) for cell in mine]
    return markdown_table(columns)


def _accuracy(cell: Cell) -> str:
    spread = "" if cell.deviation is None else f" ± {printed('accuracy', cell.deviation)}"
    return _beside(f"{printed('accuracy', cell.mean)}{spread}", cell.published)


def _epsilons(cell: Cell) -> str:
    drawn = "" if cell.honest_sampling is None else f", {shown_up(cell.honest_sampling, 3)}"
    return "none" if cell.accounted is None else f"{shown_up(cell.accounted, 3)}{drawn}"


def _beside(own: str, published: float | None) -> str:
    return own if published is None else f"{own} ({published:g})"


def _published(table: TableConfig, values: dict[str, tuple[Any, ...]], row: Any, column: Any) -> Any:
    listed = values.get(in_full(row) if isinstance(row, float) else str(row), ())
    return dict(zip(table.printed_columns, listed, strict=False)).get(column)
