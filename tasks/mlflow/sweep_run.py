"""The run of a sweep in MLflow: its table, plot, totals and note, the view of its cells, and the best cell."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.mlflow.model_tables import BEST, LATEST
from tasks.mlflow.models import MODEL
from tasks.mlflow.open_run import OpenRun, begun
from tasks.mlflow.opened import OpenedStore
from tasks.tracking.run_writer import Status, Table, View, cell_tag


class SweepRun:
    """The sweep that was begun last. Every method may be repeated after a failure that left it half done."""

    def __init__(self, opened: OpenedStore) -> None:
        self._opened = opened
        self._run: OpenRun | None = None

    def doubt(self) -> None:
        """Drops the sweep's cached rows."""
        if self._run is not None:
            self._run.doubt()

    def begin(
        self, sweep_id: str, name: str, params: Mapping[str, Any], view: View, cells: Sequence[str], at: int
    ) -> None:
        """Opens the sweep's run. `cells`: ids of runs; those that MLflow has already get the sweep's tag."""
        # The tag fedcore.run_id makes a stale sweep found like a stale run.
        tags = {"fedcore.run_id": sweep_id, "fedcore.sweep": sweep_id, "fedcore.kind": "sweep"}
        self._run = None
        with self._opened.tables.transaction():
            sweep, _ = self._opened.find_or_create(name, f"sweep {sweep_id}", tags, at)
            sweep.resume(self._opened.tables)
            sweep.add(self._opened.tables, params=params)
            self._opened.tables.experiments.offer(sweep.experiment, view)
            self._opened.tables.tag_known(cells, cell_tag(sweep_id), "yes")
        self._run = sweep

    def finish(
        self,
        status: Status,
        tables: Mapping[str, Table],
        files: tuple[Path, ...],
        totals: Mapping[str, float],
        note: str,
        view: View,
        at: int,
    ) -> None:
        """Ends the sweep's run with these files and totals. `tables`: by file name."""
        run = begun(self._run, "a sweep")
        run.log_texts(self._opened.tables, {name: _as_text(table) for name, table in tables.items()})
        for file in files:
            folder = self._opened.tables.artifacts(run.id)
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / file.name)
        # MLflow's log_table sets this tag, which makes the page show tables; log_table itself can only append.
        listed = [{"path": name, "type": "table"} for name in tables]
        tags = {"mlflow.loggedArtifacts": json.dumps(listed), "mlflow.note.content": note}
        with self._opened.tables.transaction():
            run.add(self._opened.tables, tags={key: text for key, text in tags.items() if text}, summary=totals, at=at)
            self._opened.tables.experiments.offer(run.experiment, view)
            if run.status != status:
                run.end(self._opened.tables, status, at)

    def register_best(self, run: str, name: str, tags: Mapping[str, str]) -> None:
        """Makes the model of a finished run, of any process, a version of `name` with the alias `best`."""
        found = self._opened.tables.runs({"fedcore.run_id": run, "fedcore.kind": "experiment"}, "FINISHED")
        saved = self._opened.tables.models.of(found[0].id, MODEL) if found else None
        if saved is None:
            return  # a person deleted it
        with self._opened.tables.transaction():
            labels = {**self._opened.tables.models.tags(saved), **tags}
            self._opened.tables.models.register(name, found[0].id, saved, labels, LATEST)
            self._opened.tables.models.alias(name, found[0].id, BEST)


def _as_text(table: Table) -> str:
    rows = {"columns": list(table), "data": list(zip(*table.values(), strict=True))}
    return json.dumps(rows, default=str)
