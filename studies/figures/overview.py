"""All figures of a study in two tables: the method with the lowest error, and each method's ratio to it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedcore.advice.shipped import as_bytes
from fedcore.advice.table import Row
from fedcore.directed_rounding import in_full
from fedcore.printable import in_markdown
from flows.reports.table import Markdown, markdown_table
from studies.figures.rows import gathered
from tasks.result_file import write_atomically

OVERVIEW = "overview.md"
ROWS = "table.json"


def write_overview(folder: Path) -> Path | None:
    """Writes both tables, and their rows, for all figures drawn so far in a study's folder; None if none has rows."""
    rows = gathered(folder)
    if not rows:
        return None
    write_atomically(folder / ROWS, as_bytes(rows))
    write_atomically(folder / OVERVIEW, overview(rows).encode())
    return folder / OVERVIEW


def overview(rows: Sequence[Row]) -> str:
    """The two tables as Markdown.

    The first has, by figure and epsilon, the method with the lowest mean error and the number of methods tied with it.
    The second has, by figure and method, the geometric mean over epsilon of the error divided by the lowest.
    """
    figures = list(dict.fromkeys(row.figure for row in rows))
    epsilons = sorted({row.facts.epsilon for row in rows})
    methods = list(dict.fromkeys(method for row in rows for method in row.errors))
    at = {(row.figure, row.facts.epsilon): row for row in rows}
    lowest: dict[str, list[str]] = {"figure": figures}
    for epsilon in epsilons:
        lowest[f"epsilon {in_full(epsilon)}"] = [_lowest(at.get((figure, epsilon))) for figure in figures]
    return (
        "The method of the lowest mean error, and how many others are tied with it:\n\n"
        f"{markdown_table(lowest)}\n\nError over the lowest, geometric mean over epsilon; how often tied or lowest:\n\n"
        f"{above({figure: [row for row in rows if row.figure == figure] for figure in figures}, methods)}\n"
    )


def above(groups: Mapping[str, Sequence[Row]], methods: Sequence[str]) -> str:
    """A Markdown line for each group: by method, the geometric mean over rows of its error divided by the lowest."""
    columns = {"figure": list(groups)}
    columns.update({method: [_above(rows, method) for rows in groups.values()] for method in methods})
    return markdown_table(columns)


def _lowest(row: Row | None) -> str:
    if row is None:
        return "-"
    best = min(row.errors, key=lambda method: row.errors[method])
    return f"{best}, {len(row.tied) - 1} tied" if len(row.tied) > 1 else Markdown(f"**{in_markdown(best)}**")


def _above(rows: Sequence[Row], method: str) -> str:
    mine = [row for row in rows if method in row.errors]
    if not mine:
        return "-"
    times = math.exp(statistics.fmean(math.log(row.times_the_best(method)) for row in mine))
    return f"{times:.2f} ({sum(method in row.tied for row in mine)} of {len(mine)})"
