"""The drawing of a figure from its finished runs: plots and tables in the home's folder of the study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.result import RunResult
from fedcore.home import Home
from flows.recorded.former_ids import RecordedRuns
from studies.figures.along import cost_curves, draw_cost_curves
from studies.figures.chosen import Choice
from studies.figures.curves import curves
from studies.figures.drawn_curves import draw_curves
from studies.figures.drawn_points import draw_points
from studies.figures.paper_table import draw_table, table_cells
from studies.figures.points import points
from studies.figures.rows import rows_of
from studies.study import FigureConfig, figure_folder
from tasks.result_file import jsonable, write_atomically


def draw(
    home: Home,
    name: str,
    figure: FigureConfig,
    cells: Sequence[ExperimentConfig],
    results: Sequence[RunResult],
    chosen: Sequence[Choice] = (),
) -> Path:
    """Writes plot, table.json and table.md of a figure into `reproductions/<name>/<figure>` and returns the folder.

    A table has no plot. With patience only the chosen cells have results. Raises InputError for results that do not
    make the figure.
    """
    came, runs = {result.run for result in results}, RecordedRuns(home)
    cells = [cell for cell in cells if runs.run(cell) in came]
    folder = figure_folder(home, name, figure)
    if figure.table is not None:
        draw_table(folder, figure.table, table_cells(figure.table, cells, results))
    elif figure.curves:
        parts = [
            draw_curves(folder, plotted, figure.title, curves(home, plotted, cells, results))
            for plotted in figure.curves
        ]
        write_atomically(folder / "table.md", "\n".join(parts).encode())
    else:
        made = points(cells, results, figure.points, home)
        found = draw_points(folder, figure.points, figure.title, figure.baseline, made)
        if chosen and found:
            rows = rows_of(home, figure.name, cells, results, made, found, chosen)
            write_atomically(folder / "rows.json", jsonable([row.model_dump(mode="json") for row in rows]))
        metric = figure.points.metric
        tables = [
            draw_cost_curves(folder, metric, at, figure.title, cost_curves(home, metric, at, cells, results))
            for at in figure.along
        ]
        if tables:
            write_atomically(folder / "along.md", "\n".join(tables).encode())
    return folder
