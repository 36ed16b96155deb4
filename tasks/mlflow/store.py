"""MLflow as the tracker's thread sees it: runs found by tag before one is made, rows and models logged once.

One parent run per experiment (tags `fedcore.run_id`, `fedcore.kind` = experiment), one child run per phase (also
`fedcore.phase`), one run per sweep. Every call is one transaction of `tables`.
"""

from __future__ import annotations

import getpass
import json
import shutil
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from fedcore import __version__
from tasks.mlflow.database import open_database
from tasks.mlflow.models import MODEL, ModelTemplates
from tasks.mlflow.open_run import OpenParent, OpenRun
from tasks.mlflow.tables import Logged, MlflowTables, milliseconds
from tasks.phase_model import PhaseModel
from tasks.tracking_writer import Row, Status, Table

R = TypeVar("R", bound=OpenRun)

SOURCE = f"fedcore {__version__}"
LATEST, BEST = "latest-private", "best"
"""Aliases of a registered model's versions: the newest, all of which are private, and the best of its last sweep."""

MOST_KNOWN = 64
"""Parent runs that are kept in mind after their end; the one that was begun first is forgotten first."""


class MlflowStore:
    """MLflow as the thread sees it. Every method may be repeated after a failure that left it half done.

    `run`: fedcore's id of a run that was begun and has not ended, or is one of the last `MOST_KNOWN` that have.
    """

    def __init__(self, uri: str, artifacts: Path, experiment: str, cache: Path) -> None:
        self._uri, self._artifacts, self._experiment = uri, artifacts, experiment
        self._models = ModelTemplates(cache)
        self._parents: dict[str, OpenParent] = {}
        self._sweep: OpenRun | None = None

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
            run.resume(self._tables)
            run.add(self._tables, params=params, tags=tags)
        self._parents[run_id] = OpenParent(run.id, run.status, run.params, run.last, {} if made else None)
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
                phases[index].resume(self._tables)
            phases[index].add(self._tables, params=params)

    def write_rows(self, rows: list[Row]) -> None:
        by_phase: dict[tuple[str, int], list[Row]] = {}
        for row in rows:
            by_phase.setdefault((row.run, row.phase), []).append(row)
        written: list[tuple[OpenRun, list[Row]]] = []
        unknown: list[LookupError] = []
        for (run, index), mine in by_phase.items():
            whole = [row._replace(step=row.position) for row in mine if row.position is not None]
            try:
                written += [(self._phase(run, index), mine), (self._parent(run), whole)]
            except LookupError as error:  # of one run: the others' rows are none the worse
                unknown.append(error)
        with self._tables.transaction():
            for each, mine in written:
                each.add(self._tables, rows=mine)
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
            phase.add(self._tables, summary=metrics, at=at)
            if saved is not None:
                self._tables.add_model(self._experiment_id, phase.id, MODEL, saved, {})
            phase.end(self._tables, "FINISHED", at)

    def set_tags(self, run: str, tags: Mapping[str, str]) -> None:
        with self._tables.transaction():
            self._parent(run).add(self._tables, tags=tags)

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
        parent.log_texts(self._tables, artifacts)
        saved = self._saved(parent, model)
        with self._tables.transaction():
            for phase in self._phases(run).values():
                if phase.status == "RUNNING":
                    phase.end(self._tables, status, at)
            parent.add(self._tables, summary=metrics, at=at)
            if saved is not None:
                self._tables.add_model(self._experiment_id, parent.id, MODEL, saved, privacy_tags)
                if register_as is not None:
                    self._tables.register(register_as, parent.id, saved, privacy_tags, LATEST)
            if parent.status != status:
                parent.end(self._tables, status, at)
        parent.ended = True

    def begin_sweep(self, sweep_id: str, name: str, params: Mapping[str, Any], at: int) -> None:
        # fedcore.run_id too, so that a stale sweep is found like a stale run
        tags = {"fedcore.run_id": sweep_id, "fedcore.sweep": sweep_id, "fedcore.kind": "sweep"}
        self._sweep = None
        with self._tables.transaction():
            sweep, _ = self._find_or_create(name, tags, at)
            sweep.resume(self._tables)
            sweep.add(self._tables, params=params)
        self._sweep = sweep

    def finish_sweep(self, status: Status, table: Table, plots: tuple[Path, ...], at: int) -> None:
        run = _begun(self._sweep, "a sweep")
        rows = {"columns": list(table), "data": list(zip(*table.values(), strict=True))}
        run.log_texts(self._tables, {"table.json": json.dumps(rows, default=str)} if table else {})
        for plot in plots:
            folder = self._tables.artifacts(run.id)
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(plot, folder / plot.name)
        with self._tables.transaction():
            # The tag with which MLflow's own log_table, which can only append, makes the page show a table.
            tag = {"mlflow.loggedArtifacts": '[{"path": "table.json", "type": "table"}]'} if table else {}
            run.add(self._tables, tags=tag)
            if run.status != status:
                run.end(self._tables, status, at)

    def register_best(self, run: str, name: str, tags: Mapping[str, str]) -> None:
        """Makes the model of a finished run, not necessarily one of this process, a version of `name`, called `best`.
        """
        found = self._tables.runs({"fedcore.run_id": run, "fedcore.kind": "experiment"}, "FINISHED")
        saved = self._tables.model(found[0].id, MODEL) if found else None
        if saved is None:
            return  # a person deleted it
        with self._tables.transaction():
            told = {**self._tables.model_tags(saved), **tags}
            self._tables.register(name, found[0].id, saved, told, LATEST)
            self._tables.alias(name, found[0].id, BEST)

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

    def _parent(self, run: str) -> OpenParent:
        return _begun(self._parents.get(run), f"run {run}")

    def _phase(self, run: str, index: int) -> OpenRun:
        return _begun(self._phases(run).get(index), f"phase {index}")

    def _phases(self, run: str) -> dict[int, OpenRun]:
        parent = self._parent(run)
        if parent.phases is None:
            found = self._tables.runs({"mlflow.parentRunId": parent.id})
            parent.phases = {int(phase.tags["fedcore.phase"]): OpenRun.found(phase) for phase in found}
        return parent.phases

    def _find_or_create(self, name: str, tags: dict[str, str], at: int) -> tuple[OpenRun, bool]:
        """The run with these tags, and whether it was made just now."""
        found = self._tables.runs(tags, experiment=self._experiment_id)
        return (OpenRun.found(found[0]), False) if found else (self._create(name, tags, at), True)

    def _create(self, name: str, tags: dict[str, str], at: int) -> OpenRun:
        tags = {"mlflow.user": _user(), "mlflow.source.name": SOURCE, "mlflow.source.type": "LOCAL", **tags}
        return OpenRun(self._tables.create_run(self._experiment_id, name, tags, at), last={})

    def _saved(self, run: OpenRun, model: PhaseModel | None) -> Logged | None:
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


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a process whose user has no name
        return "unknown"
