"""Rows of the table behind `fedcore advise`, from figures whose settings were chosen on simulated silos."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from fedcore.advice.shipped import advice_rows
from fedcore.advice.table import Facts, Row
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.result import RunResult
from fedcore.home import Home
from flows.runs import store_path
from studies.figures.chosen import Choice
from studies.figures.comparisons import Ranking
from studies.figures.points import EPSILON, Point
from tasks.run_file import read_rows


def rows_of(
    home: Home,
    figure: str,
    cells: Sequence[ExperimentConfig],
    results: Sequence[RunResult],
    points: Sequence[Point],
    rankings: Sequence[Ranking],
    chosen: Sequence[Choice],
) -> list[Row]:
    """A row for each epsilon of a figure. Numbers sent are means over its runs, from their metrics."""
    found = []
    for ranking in rankings:
        mine = [
            (cell, result) for cell, result in zip(cells, results, strict=True) if cell.privacy.epsilon == ranking.at
        ]
        by_method: dict[str, list[RunResult]] = {}
        for _, result in mine:
            by_method.setdefault(result.method, []).append(result)
        there = [point for point in points if point.at == ranking.at]
        found.append(
            Row(
                figure=figure,
                facts=Facts.of(mine[0][0]),
                measure=there[0].metric,
                errors={point.method: point.mean for point in there},
                tied=(ranking.best, *ranking.tied),
                settings={each.method: each.sections for each in chosen if each.place[EPSILON] == ranking.at},
                rounds={method: max(result.rounds for result in runs) for method, runs in by_method.items()},
                floats={
                    method: statistics.fmean(_sent(home, run) for run in runs) for method, runs in by_method.items()
                },
            )
        )
    return found


def gathered(folder: Path) -> tuple[Row, ...]:
    """The rows of all figures in a study's folder, by the names of the figures."""
    return tuple(row for path in sorted(folder.glob("*/rows.json")) for row in advice_rows(path))


def _sent(home: Home, result: RunResult) -> float:
    """Numbers that all silos sent in a run."""
    *_, (_, _, last) = read_rows(store_path(home, result.run))
    return last["communication/floats_up"]
