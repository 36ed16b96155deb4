"""Publishes a sweep to MLflow and Prefect: config at the start, results and cost at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact

from fedcore.experiment.result import RunResult
from fedcore.experiment.sweep import SweepConfig
from fedcore.printable import in_markdown
from flows.driver.session import Session
from flows.pages.links import artifact_key, sweep_page
from flows.pages.sweeps import as_printed, budget_table, sweep_metrics, sweep_view
from flows.reports.settings import settings
from flows.reports.silo_totals import SiloTotal
from flows.reports.table import Report, cells_path, markdown
from flows.sweep_files import sweep_id, totals_or_reason
from tasks.tracking.run_writer import Status


class SweepPublication:
    """Publication of one sweep. MLflow receives nothing if no cell is tracked.

    `settings`: by run, the values that the sweep varies.
    """

    def __init__(self, config: SweepConfig, session: Session) -> None:
        self._config, self._session, self._sweep = config, session, sweep_id(config)
        self._tracked = any(cell.tracking.mlflow for cell in config.cells())
        self._totals: Sequence[SiloTotal] = ()
        self._statement = ""
        self._runs = session.recorded_runs
        self.settings = settings(config, self._runs.run)

    def begin(self, rounds: int) -> None:
        """Opens the sweep's run in MLflow. `rounds`: sum over all cells; with patience, an upper bound."""
        config, patience = self._config, self._config.patience
        cells = config.cells()
        counts: dict[str, Any] = {"cells": len(cells), "rounds": rounds}
        if patience is not None:
            counts = {"cells_at_most": len(cells), "rounds_at_most": rounds, "choice": patience.statement}
            counts["patience"] = patience.model_dump(mode="json")
        if self._tracked:
            ids = [self._runs.run(cell) for cell in cells]
            self._session.tracker.begin_sweep(self._sweep, config.name, counts, sweep_view(config, self.settings), ids)

    def finish(self, status: Status, report: Report | None, finished: Sequence[RunResult]) -> None:
        """Ends the sweep's run in MLflow with table and accounts; registers the best cell's model."""
        config, session = self._config, self._session
        self._totals, self._statement = totals_or_reason(session.home, config, finished, self._runs)
        if not self._tracked:
            return
        self._register_best(finished)
        tables = (
            {
                "table.json": as_printed(report.columns, "accounted", "shuffled"),
                "budget.json": budget_table(self._totals),
            }
            if report
            else {}
        )
        files = [cells_path(session.home, self._sweep)] if report else []
        files += [report.plot] if report and report.plot else []
        session.tracker.finish_sweep(
            status,
            sweep_view(config, self.settings, finished),
            tables,
            files,
            sweep_metrics(self._totals, finished),
            in_markdown(self._statement),
        )

    def show(self, report: Report) -> None:
        """Adds an artifact with table, cost and a link to the cells; logs the cost."""
        get_run_logger().info(self._statement)
        session, text = self._session, f"{markdown(report.lines)}\n{in_markdown(self._statement)}"
        if self._tracked and (page := sweep_page(session.home, session.pages, self._sweep)) is not None:
            text += f"\n\n[Cells in MLflow]({page})"
        create_markdown_artifact(text, key=artifact_key("sweep", self._sweep))

    def _register_best(self, finished: Sequence[RunResult]) -> None:
        """Registers the private cell of lowest error that wants it, with a statement on the choice."""
        config = self._config
        wanted = {self._runs.run(cell) for cell in config.cells() if cell.tracking.register_models != "none"}
        private = [result for result in finished if result.trust != "none" and result.run in wanted]
        errors = {result.run: result.error for result in private if result.error is not None}
        if not errors:
            return
        run = min(errors, key=lambda each: errors[each])
        before = "" if config.patience is None else f"{config.patience.statement}. "
        lowest = f"lowest {private[0].measure} of {len(errors)} cells"
        choice = f"{lowest}: choosing flatters it, and costs what all of them do"
        statement = f"{before}{choice}. {self._statement}"
        self._session.tracker.register_best(run, config.name, {"privacy.choice": statement})
