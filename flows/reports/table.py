"""Report of a run or sweep: a table of means over seeds, files with its rows, and a plot."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from fedcore.directed_rounding import shown_up
from fedcore.experiment.patience import PatienceConfig
from fedcore.experiment.result import RunResult
from fedcore.home import Home
from fedcore.printable import in_cell, in_markdown
from flows.reports.baseline import measure, shown_error, without_a_model
from flows.reports.lines import Line, summarise
from flows.reports.plot import plot
from flows.reports.settings import Settings, heads, settings_text, shown
from tasks.result_file import jsonable, write_atomically


@dataclass(frozen=True)
class Report:
    """A written report: its lines, the columns of report.json, and the plot's path (or None)."""

    lines: tuple[Line, ...]
    columns: dict[str, list[Any]]
    plot: Path | None


def plain_table(title: str | None = None) -> Table:
    """An empty table that spends no width on lines, for terminals of 80 columns."""
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)


def table(lines: Sequence[Line], title: str, width: int = 80) -> Table:
    """The lines as a terminal table, without columns that do not fit into `width` characters."""
    shown_table = plain_table(title)
    shown_table.caption, shown_table.caption_justify = caption(lines), "left"
    varied = _of_settings(lines)
    columns = fitting(_columns(lines, varied), (head for head in _LEAST_NEEDED if head not in varied), width)
    for head in columns:
        words = head in ("method", "settings")
        shown_table.add_column(head, justify="left" if words else "right", no_wrap=not words, overflow="fold")
    previous = None
    for index, line in enumerate(lines):
        if previous not in (None, line.method):
            shown_table.add_section()
        previous = line.method
        shown_table.add_row(*(cells[index] for cells in columns.values()))
    return shown_table


def caption(lines: Sequence[Line]) -> str:
    """Caption of a table of the lines: unit of epsilon, noise, constant answers, meaning of a mark."""
    noise = "; ".join(dict.fromkeys(line.noise for line in lines))
    # Records are the default unit, which the caption does not mention.
    units = [unit for unit in dict.fromkeys(line.unit for line in lines) if unit != "records"]
    for_units = "".join(f", for {unit}" for unit in units)
    largest = max((line.shuffled for line in lines if line.shuffled is not None), default=None)
    shuffled = (
        ""
        if largest is None
        else (
            f" Of shuffled runs epsilon is towards who sees permuted batches only, at most {shown_up(largest, 5)}; "
            "accounted is without a shuffler, and charged."
        )
    )
    marked = f" {BEST}" if any(line.best for line in lines) else ""
    return f"epsilon is per run{for_units}; {noise}.{shuffled}{without_a_model(lines)}{marked}"


BEST = (
    "*: the lowest of its method's settings. It was chosen by the errors shown, which flatters it, and the choice "
    "costs silos what all cells cost together."
)
MOST_KEYS = 3
"""Number of varied keys up to which each has a column."""
_LEAST_NEEDED = ("seconds", "runs", "rounds", "spread", "by silo", "accounted")


def _columns(lines: Sequence[Line], varied: dict[str, list[str]]) -> dict[str, list[str]]:
    """Cells by the heads of their columns, including the columns of varied keys."""
    columns = {"method": [line.method for line in lines], "epsilon": [line.level for line in lines]}
    columns |= varied
    columns["accounted"] = [shown_up(line.accounted, 5) for line in lines]
    star = any(line.best for line in lines)
    mark = {True: "*", False: " " * star}
    columns[measure(lines)] = [shown_error(line, line.error) + mark[line.best] for line in lines]
    columns["spread"] = [shown_error(line, line.spread) for line in lines]
    columns["runs"] = [str(line.runs) for line in lines]
    if "rounds" not in varied:
        columns["rounds"] = [str(line.rounds) for line in lines]
    if any(line.silo_mean is not None for line in lines):  # in place of seconds: a terminal has 80 columns
        columns["by silo"] = [shown_error(line, line.silo_mean) for line in lines]
    else:
        columns["seconds"] = [f"{line.seconds:.2f}" for line in lines]
    return columns


def _of_settings(lines: Sequence[Line]) -> dict[str, list[str]]:
    """A column for each varied key; beyond `MOST_KEYS`, one column with all settings of a line."""
    keys = list(dict.fromkeys(key for line in lines for key in line.settings))
    if len(keys) > MOST_KEYS:
        return {"settings": [settings_text(line.settings) for line in lines]}
    named = heads(keys)
    return {named[key]: [shown(line.settings.get(key)) for line in lines] for key in keys}


def fitting(columns: dict[str, list[str]], least_needed: Iterable[str], width: int) -> dict[str, list[str]]:
    """The columns that fit side by side into `width`, a space apart. Columns `least_needed` are dropped in order."""
    left = dict(columns)
    for head in least_needed:
        if 1 + sum(1 + max(map(len, (name, *cells))) for name, cells in left.items()) <= width:
            break
        left.pop(head, None)
    return left


def markdown(lines: Sequence[Line]) -> str:
    """The lines as a Markdown table with all columns, and its caption."""
    return f"{markdown_table(_columns(lines, _of_settings(lines)))}\n{in_markdown(caption(lines))}\n"


class Markdown(str):
    """A cell that is Markdown already; any other cell is plain text, and is escaped."""


def markdown_table(columns: Mapping[str, Sequence[str]]) -> str:
    """Markdown table of cells by the heads of their columns."""
    rows = [tuple(columns), *zip(*columns.values(), strict=True)]
    head, *body = ["| " + " | ".join(map(_in_table, row)) + " |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(columns), *body]) + "\n"


def _in_table(cell: str) -> str:
    return cell if isinstance(cell, Markdown) else in_markdown(cell.replace("|", "/"))


def effort(lines: Sequence[Line]) -> Table | None:
    """Table of rounds and gradients as multiples of the theorems' orders; None without a theorem."""
    compared = [(line, line.theorem) for line in lines if line.theorem is not None]
    if not compared:
        return None
    compared_table = plain_table("rounds and gradients against the theorems' orders (constants and logarithms dropped)")
    for head in ("method", "epsilon", "rounds", "order", "ratio", "gradients", "order", "ratio"):
        compared_table.add_column(head, justify="left" if head == "method" else "right")
    for line, theorem in compared:
        cells = []
        for counted, order in ((line.rounds, theorem.rounds), (line.gradients, theorem.gradient_evaluations)):
            cells += [f"{counted:,}", f"{order:,.0f}", f"{counted / order:.2g}"]
        compared_table.add_row(line.name, line.level, *cells)
    sources = {f"{line.method}: {theorem.source}": None for line, theorem in compared}
    compared_table.caption, compared_table.caption_justify = "; ".join(sources), "left"
    return compared_table


def plot_path(home: Home, sweep: str) -> Path:
    return home.sweeps / sweep / "plot.png"


def cells_path(home: Home, sweep: str) -> Path:
    return home.sweeps / sweep / "cells.csv"


def write_report(
    home: Home,
    sweep: str,
    results: Sequence[RunResult],
    patience: PatienceConfig | None = None,
    settings: Mapping[str, Settings] | None = None,
) -> Report:
    """Writes report.json, cells.csv and, if there are errors, plot.png into the sweep's folder.

    `patience`: rule by which results were chosen, for the plot's title. `settings`: by run, the varied values.
    """
    lines = summarise(results, settings)
    keys = list(dict.fromkeys(key for line in lines for key in line.settings))
    columns: dict[str, list[Any]] = {
        field: [getattr(line, field) for line in lines] for field in Line.__dataclass_fields__ if field != "settings"
    }
    columns["theorem"] = [line.theorem and line.theorem.as_json() for line in lines]
    columns |= {key: [line.settings.get(key) for line in lines] for key in keys}
    folder = home.sweeps / sweep
    write_atomically(folder / "report.json", jsonable(columns))
    write_atomically(cells_path(home, sweep), _as_csv(results, settings or {}))
    has_curve = any(line.error is not None and line.place is not None for line in lines)
    path = plot_path(home, sweep)
    if has_curve:
        plot(lines, path, None if patience is None else patience.statement)
    return Report(lines, columns, path if has_curve else None)


def _as_csv(results: Sequence[RunResult], settings: Mapping[str, Settings]) -> bytes:
    """CSV with a row for each cell: run, settings and results."""
    text = io.StringIO()
    keys = list(dict.fromkeys(key for values in settings.values() for key in values))
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(in_cell, ["run", "method", *keys, *_SPENT, *_OF_CELLS, "error", "measure"]))
    for result in results:
        varied = settings.get(result.run, {})
        values = [
            json.dumps(varied[key]) if isinstance(varied.get(key), dict | list) else varied.get(key) for key in keys
        ]
        fields = [getattr(result, name) for name in _OF_CELLS]
        spent = result.epsilon_accounted and shown_up(result.epsilon_accounted, 6)
        cells = [result.run, result.method, *values, result.epsilon_target, spent, *fields]
        cells += [result.error, result.measure]
        writer.writerow(map(in_cell, cells))
    return text.getvalue().encode()


_SPENT = ("epsilon_target", "epsilon_accounted")
_OF_CELLS = ("seed", "rounds", "seconds", "test_loss", "test_auc")
