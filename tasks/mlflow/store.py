"""MLflow as the tracker's thread sees it: runs found by tag before one is made, rows and models logged once.

One parent run per experiment (tags `fedcore.run_id`, `fedcore.kind` = experiment), one child run per phase (also
`fedcore.phase`), one run per sweep. Every call is one transaction of `tables`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from tasks.mlflow.database import open_database
from tasks.mlflow.models import MODEL, ModelTemplates
from tasks.mlflow.tables import Found, Logged, MlflowTables, Point, milliseconds
from tasks.phase_model import PhaseModel
from tasks.tracking_writer import Row, Status, Table, finite_or_nan, flat

R = TypeVar("R", bound="_OpenRun")


@dataclass
class _OpenRun:
    """A run that is written to; `last` is step and value of a key's last point, None if MLflow has to be asked."""

    id: str
    status: str = "RUNNING"
    params: set[str] = field(default_factory=set)
    last: dict[str, tuple[int, float]] | None = None

    @classmethod
    def found(cls, run: Found) -> _OpenRun:
        return cls(run.id, run.status, set(run.params))


@dataclass
class _OpenParent(_OpenRun):
    """A run with its phases, by index; None if MLflow has to be asked."""

    phases: dict[int, _OpenRun] | None = None
    ended: bool = False


MOST_KNOWN = 64
"""Parent runs that are kept in mind after their end; the one that was begun first is forgotten first."""


class MlflowStore:
    """MLflow as the thread sees it. Every method may be repeated after a failure that left it half done.

    `run`: fedcore's id of a run that was begun and has not ended, or is one of the last `MOST_KNOWN` that have.
    """

    def __init__(self, uri: str, artifacts: Path, experiment: str, cache: Path) -> None:
        self._uri, self._artifacts, self._experiment = uri, artifacts, experiment
        self._models = ModelTemplates(cache)
        self._parents: dict[str, _OpenParent] = {}
        self._sweep: _OpenRun | None = None

    def doubt(self) -> None:
        """Forgets what is known of the database: a call failed, and may have had its effect, or none."""
        self.__dict__.pop("_experiment_id", None)
        for run in (*self._parents.values(), *([] if self._sweep is None else [self._sweep])):
            run.status, run.params, run.last = "", set(), None
        for parent in self._parents.values():
            parent.phases = None

    def settle(self) -> None:
        """Returns when all is on disk."""
        self._tables.settle()

    def begin(self, run_id: str, name: str, params: Mapping[str, Any], tags: Mapping[str, str], at: int) -> str:
        self._parents.pop(run_id, None)
        with self._tables.transaction():
            known = {"fedcore.run_id": run_id, "fedcore.kind": "experiment"}
            run, made = self._find_or_create(name, known, at)
            self._resume(run)
            self._add(run, params=params, tags=tags)
        self._parents[run_id] = _OpenParent(run.id, run.status, run.params, run.last, {} if made else None)
        ended = [each for each, parent in self._parents.items() if parent.ended]
        for each in ended[: max(0, len(ended) - MOST_KNOWN)]:
            del self._parents[each]
        return run.id

    def begin_phase(self, run: str, index: int, params: Mapping[str, Any], at: int) -> None:
        with self._tables.transaction():
            phases = self._phases(run)
            if index not in phases:
                tags = {"mlflow.parentRunId": self._parent(run).id, "fedcore.run_id": run}
                tags |= {"fedcore.kind": "phase", "fedcore.phase": str(index)}
                # Of training nobody has to say what is asked.
                name = f"phase {index}, {params['asks']}" if "asks" in params else f"phase {index}"
                phases[index] = self._create(name, tags, at)
            if phases[index].status != "FINISHED":
                self._resume(phases[index])
            self._add(phases[index], params=params)

    def write_rows(self, rows: list[Row]) -> None:
        by_phase: dict[tuple[str, int], list[Row]] = {}
        for row in rows:
            by_phase.setdefault((row.run, row.phase), []).append(row)
        phases: list[tuple[_OpenRun, list[Row]]] = []
        unknown: list[LookupError] = []
        for (run, index), mine in by_phase.items():
            try:
                phases.append((self._phase(run, index), mine))
            except LookupError as error:  # of one run: the others' rows are none the worse
                unknown.append(error)
        with self._tables.transaction():
            for phase, mine in phases:
                self._add(phase, rows=mine)
        if unknown:
            raise unknown[0]

    def end_phase(
        self, run: str, index: int, metrics: Mapping[str, float], model: PhaseModel | None, at: int
    ) -> None:
        phase = self._phase(run, index)
        if phase.status == "FINISHED":
            return
        saved = self._saved(phase, model)
        with self._tables.transaction():
            self._add(phase, summary=metrics, at=at)
            if saved is not None:
                self._tables.add_model(self._experiment_id, phase.id, MODEL, saved, {})
            self._end(phase, "FINISHED", at)

    def set_tags(self, run: str, tags: Mapping[str, str]) -> None:
        with self._tables.transaction():
            self._add(self._parent(run), tags=tags)

    def finish(
        self,
        run: str,
        status: Status,
        metrics: Mapping[str, float],
        artifacts: Mapping[str, str],
        model: PhaseModel | None,
        register_as: str | None,
        privacy_tags: Mapping[str, str],
        at: int,
    ) -> None:
        parent = self._parent(run)
        self._log_texts(parent, artifacts)
        saved = self._saved(parent, model)
        with self._tables.transaction():
            for phase in self._phases(run).values():
                if phase.status == "RUNNING":
                    self._end(phase, status, at)
            self._add(parent, summary=metrics, at=at)
            if saved is not None:
                self._tables.add_model(self._experiment_id, parent.id, MODEL, saved, privacy_tags)
                if register_as is not None:
                    self._tables.register(register_as, parent.id, saved, privacy_tags)
            if parent.status != status:
                self._end(parent, status, at)
        parent.ended = True

    def begin_sweep(self, sweep_id: str, name: str, params: Mapping[str, Any], at: int) -> None:
        # fedcore.run_id too, so that a stale sweep is found like a stale run
        tags = {"fedcore.run_id": sweep_id, "fedcore.sweep": sweep_id, "fedcore.kind": "sweep"}
        self._sweep = None
        with self._tables.transaction():
            sweep, _ = self._find_or_create(name, tags, at)
            self._resume(sweep)
            self._add(sweep, params=params)
        self._sweep = sweep

    def finish_sweep(self, status: Status, table: Table, plots: tuple[Path, ...], at: int) -> None:
        run = _begun(self._sweep, "a sweep")
        rows = {"columns": list(table), "data": list(zip(*table.values(), strict=True))}
        self._log_texts(run, {"table.json": json.dumps(rows, default=str)} if table else {})
        for plot in plots:
            folder = self._tables.artifacts(run.id)
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(plot, folder / plot.name)
        with self._tables.transaction():
            # The tag with which MLflow's own log_table, which can only append, makes the page show a table.
            tag = {"mlflow.loggedArtifacts": '[{"path": "table.json", "type": "table"}]'} if table else {}
            self._add(run, tags=tag)
            if run.status != status:
                self._end(run, status, at)

    def close_stale(self, is_running: Callable[[str], bool]) -> list[str]:
        running = [run for run in self._tables.runs({}, status="RUNNING") if "fedcore.run_id" in run.tags]
        gone = {run_id: not is_running(run_id) for run_id in {run.tags["fedcore.run_id"]: None for run in running}}
        with self._tables.transaction():
            for run in running:
                if gone[run.tags["fedcore.run_id"]]:
                    self._tables.set_status(run.id, "KILLED", milliseconds())
        return [run_id for run_id, is_gone in gone.items() if is_gone]

    def close(self) -> None:
        """Lets go of the database, if it was opened."""
        tables = self.__dict__.pop("_tables", None)
        if tables is not None:
            tables.close()

    @cached_property
    def _tables(self) -> MlflowTables:
        return open_database(self._uri, self._artifacts)

    @cached_property
    def _experiment_id(self) -> int:
        return self._tables.experiment(self._experiment, self._artifacts)

    def _parent(self, run: str) -> _OpenParent:
        return _begun(self._parents.get(run), f"run {run}")

    def _phase(self, run: str, index: int) -> _OpenRun:
        return _begun(self._phases(run).get(index), f"phase {index}")

    def _phases(self, run: str) -> dict[int, _OpenRun]:
        parent = self._parent(run)
        if parent.phases is None:
            found = self._tables.runs({"mlflow.parentRunId": parent.id})
            parent.phases = {int(phase.tags["fedcore.phase"]): _OpenRun.found(phase) for phase in found}
        return parent.phases

    def _find_or_create(self, name: str, tags: dict[str, str], at: int) -> tuple[_OpenRun, bool]:
        """The run with these tags, and whether it was made just now."""
        found = self._tables.runs(tags, experiment=self._experiment_id)
        return (_OpenRun.found(found[0]), False) if found else (self._create(name, tags, at), True)

    def _create(self, name: str, tags: dict[str, str], at: int) -> _OpenRun:
        return _OpenRun(self._tables.create_run(self._experiment_id, name, tags, at), last={})

    def _resume(self, run: _OpenRun) -> None:
        if run.status != "RUNNING":
            self._tables.set_status(run.id, "RUNNING")
            run.status = "RUNNING"

    def _end(self, run: _OpenRun, status: Status, at: int) -> None:
        self._tables.set_status(run.id, status, at)
        run.status = status

    def _add(
        self,
        run: _OpenRun,
        params: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        rows: Iterable[Row] = (),
        summary: Mapping[str, float] | None = None,
        at: int = 0,
    ) -> None:
        """Writes what the run lacks: parameters, points after the last step, changed values."""
        last = self._tables.last_points(run.id) if run.last is None else dict(run.last)
        new = {key: value for key, value in flat(params or {}).items() if key not in run.params}
        points = []
        for row in rows:
            for key, value in row.values.items():
                before = last.get(key)
                if before is None or row.step > before[0]:
                    last[key] = (row.step, finite_or_nan(value))
                    points.append(Point(key, last[key][1], row.step, row.timestamp))
        for key, value in (summary or {}).items():
            step, before_value = last.get(key) or (0, None)
            last[key] = (step, finite_or_nan(value))
            if before_value is None or str(before_value) != str(last[key][1]):
                points.append(Point(key, last[key][1], step, at))
        self._tables.add(run.id, new, {key: str(value) for key, value in (tags or {}).items()}, points)
        run.params |= set(new)
        run.last = last

    def _log_texts(self, run: _OpenRun, texts: Mapping[str, str]) -> None:
        folder = self._tables.artifacts(run.id)
        for name, text in texts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")

    def _saved(self, run: _OpenRun, model: PhaseModel | None) -> Logged | None:
        """The run's model, its files written; `add_model` notes it. None if there is none to write."""
        if model is None:
            return None
        logged = self._tables.model(run.id, MODEL)
        if logged is not None and logged.ready:
            return logged
        if logged is None:
            logged = self._tables.new_model(self._experiment_id)
        shutil.rmtree(logged.folder, ignore_errors=True)  # what a killed driver, or a failed attempt, has left there
        ids = {"model_id": logged.id, "model_uuid": logged.id, "run_id": run.id, "artifact_path": logged.location}
        self._models.save(model, logged.folder, ids)
        return logged


def _begun(run: R | None, what: str) -> R:
    if run is None:
        raise LookupError(f"{what} was not begun")
    return run
