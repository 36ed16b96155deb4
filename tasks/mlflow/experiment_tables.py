"""Experiments, the columns in which their page lists runs, and the data sets of runs, as rows of MLflow's database."""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Sequence
from pathlib import Path

from tasks.mlflow.model_tables import milliseconds
from tasks.tracking.run_writer import DatasetInput, View

LONGEST_VIEW = 5000
"""MLflow's own limit for a tag of an experiment, in characters."""
LONGEST_SCHEMA = 60_000
_VIEW = "mlflow.sharedViewState."


class ExperimentTables:
    """Experiments in an open database. Every method may raise sqlite3.Error, and may be called again."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def of(self, name: str, artifacts: Path, view: View) -> int:
        """The experiment's id; creates a missing one with this view, and restores one that a person deleted."""
        found = self._db.execute("SELECT experiment_id FROM experiments WHERE name = ?", (name,)).fetchone()
        if found is not None:
            self._db.execute("UPDATE experiments SET lifecycle_stage = 'active' WHERE experiment_id = ?", found)
            return int(found[0])
        now = milliseconds()
        values = (name, artifacts.absolute().as_uri(), now, now)
        made = self._db.execute(
            "INSERT INTO experiments (name, artifact_location, lifecycle_stage, creation_time, last_update_time) "
            "VALUES (?, ?, 'active', ?, ?)",
            values,
        )
        # Without this tag the page opens on views for language models instead of the runs.
        experiment = int(made.lastrowid or 0)
        self._tag(experiment, "mlflow.experimentKind", "custom_model_development")
        self.offer(experiment, view)
        return experiment

    def offer(self, experiment: int, view: View) -> None:
        """Adds a view to the experiment's page, or replaces the one with its key; drops columns beyond the limit."""
        columns, at = list(view.columns), milliseconds()
        while len(text := _as_text(view, columns, at)) > LONGEST_VIEW and columns:
            columns.pop()
        self._tag(experiment, _VIEW + view.key, text)

    def add_input(self, experiment: int, run: str, data: DatasetInput) -> None:
        """Records that a run was trained on these data, once."""
        key = (experiment, data.name, data.digest)
        columns = [{"type": "double", "name": name, "required": True} for name in data.columns]
        described = json.dumps({"mlflow_colspec": columns}) if columns else ""
        schema = described if len(described) <= LONGEST_SCHEMA else ""
        self._db.execute(
            "INSERT OR IGNORE INTO datasets (dataset_uuid, experiment_id, name, digest, dataset_source_type, "
            "dataset_source, dataset_schema, dataset_profile) VALUES (?, ?, ?, ?, 'code', ?, ?, ?)",
            (uuid.uuid4().hex, *key, json.dumps({"tags": {}}), schema or None, json.dumps(data.profile)),
        )
        one = "SELECT dataset_uuid FROM datasets WHERE experiment_id = ? AND name = ? AND digest = ?"
        (dataset,) = self._db.execute(one, key).fetchone()
        known = self._db.execute(
            "SELECT 1 FROM inputs WHERE source_type = 'DATASET' AND source_id = ? AND destination_type = 'RUN' "
            "AND destination_id = ?",
            (dataset, run),
        ).fetchone()
        if known is not None:
            return
        made = uuid.uuid4().hex
        self._db.execute(
            "INSERT INTO inputs (input_uuid, source_type, source_id, destination_type, destination_id, step) "
            "VALUES (?, 'DATASET', ?, 'RUN', ?, 0)",
            (made, dataset, run),
        )
        tag = (made, "mlflow.data.context", "training")
        self._db.execute("INSERT INTO input_tags (input_uuid, name, value) VALUES (?, ?, ?)", tag)

    def _tag(self, experiment: int, key: str, value: str) -> None:
        columns = "(key, value, experiment_id)"
        self._db.execute(f"INSERT OR REPLACE INTO experiment_tags {columns} VALUES (?, ?, ?)", (key, value, experiment))


def _as_text(view: View, columns: Sequence[str], at: int) -> str:
    """A saved view as the page of MLflow 3.17 reads it."""
    state = {"selectedColumns": columns, "searchFilter": view.filter}
    return json.dumps({"name": view.name, "createdAt": at, "updatedAt": at, "state": json.dumps(state)})
