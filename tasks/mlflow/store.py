"""The tracking store that writes MLflow's tables: runs found by tag before one is made, rows and models logged once.

Each `name` of a config is an experiment of MLflow. Each run is a parent run there, with tags `fedcore.run_id` and
`fedcore.kind` = experiment. Each phase is a child run, also tagged `fedcore.phase`; each sweep is a run. Every call is
one transaction of `tables`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedcore.experiment.served.phase_model import PhaseModel
from tasks.mlflow.database import found_run, is_final
from tasks.mlflow.model_tables import LATEST, Logged, milliseconds
from tasks.mlflow.models import MODEL, ModelTemplates
from tasks.mlflow.open_run import OpenParent, OpenRun, begun
from tasks.mlflow.opened import OpenedStore
from tasks.mlflow.sweep_run import SweepRun
from tasks.mlflow.tables import MlflowTables
from tasks.tracking.run_writer import MISSING, Address, DatasetInput, FoundRun, Kind, LeftBehind, Row, Status

MOST_KNOWN = 64
"""Most ended parent runs that stay cached; the one that was begun first is dropped first."""


class MlflowStore:
    """Writes runs to MLflow's tables. Every method may be repeated after a failure that left it half done.

    `sweep`: the run of the sweep around them. `run`, an argument of many methods: fedcore's id of a run that was begun;
    of ended runs only the last `MOST_KNOWN` are cached.
    """

    def __init__(self, uri: str, artifacts: Path, cache: Path) -> None:
        self._uri, self._opened = uri, OpenedStore(uri, artifacts)
        self._models = ModelTemplates(cache)
        self._parents: dict[str, OpenParent] = {}
        self.sweep = SweepRun(self._opened)

    def find(self, tags: Mapping[str, str]) -> FoundRun | None:
        """The first run with these tags, read by a separate connection; a missing store is not created."""
        return found_run(self._uri, tags)

    def is_final(self, error: Exception) -> bool:
        """True if another attempt cannot succeed: the entry is wrong, not the store unreachable."""
        return is_final(error)

    def doubt(self) -> None:
        """Drops everything cached from the database: a call failed, and may or may not have taken effect."""
        self._opened.doubt()
        self.sweep.doubt()
        for parent in self._parents.values():
            parent.doubt()
            parent.phases = None

    def settle(self) -> None:
        """Returns when all committed rows are on disk."""
        self._tables.settle()

    def close(self) -> None:
        """Closes the database, if it was opened."""
        self._opened.close()

    def begin(
        self,
        run_id: str,
        experiment: str,
        name: str,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
        data: DatasetInput | None,
        at: int,
    ) -> Address:
        self._parents.pop(run_id, None)
        with self._tables.transaction():
            known = {"fedcore.run_id": run_id, "fedcore.kind": "experiment"}
            run, made = self._opened.find_or_create(experiment, name, known, at)
            run.resume(self._tables)
            run.add(self._tables, params=params, tags=tags)
            if data is not None:
                self._tables.experiments.add_input(run.experiment, run.id, data)
        self._parents[run_id] = OpenParent(
            run.id, run.experiment, run.status, run.params, run.last, {} if made else None
        )
        ended = [each for each, parent in self._parents.items() if parent.ended]
        for each in ended[: max(0, len(ended) - MOST_KNOWN)]:
            del self._parents[each]
        return Address(run.experiment, run.id)

    def begin_phase(self, run: str, index: int, params: Mapping[str, Any], at: int) -> None:
        with self._tables.transaction():
            phases, parent = self._phases(run), self._parent(run)
            if index not in phases:
                tags = {"mlflow.parentRunId": parent.id, "fedcore.run_id": run}
                tags |= {"fedcore.kind": "phase", "fedcore.phase": str(index)}
                # Training phases have no "asks": the name needs no kind of question.
                name = f"phase {index}, {params['asks']}" if "asks" in params else f"phase {index}"
                phases[index] = self._opened.create(parent.experiment, name, tags, at)
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
            except LookupError as error:  # one run is unknown; the others' rows are written
                unknown.append(error)
        with self._tables.transaction():
            for each, mine in written:
                each.add(self._tables, rows=mine)
        if unknown:
            raise unknown[0]

    def end_phase(self, run: str, index: int, metrics: Mapping[str, float], model: PhaseModel | None, at: int) -> None:
        phase = self._phase(run, index)
        if phase.status == "FINISHED":
            return
        saved = self._saved(phase, model)
        with self._tables.transaction():
            phase.add(self._tables, summary=metrics, at=at)
            if saved is not None:
                self._tables.models.add(phase.experiment, phase.id, MODEL, saved, {})
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
                self._tables.models.add(parent.experiment, parent.id, MODEL, saved, privacy_tags)
                if register_as is not None:
                    self._tables.models.register(register_as, parent.id, saved, privacy_tags, LATEST)
            if parent.status != status:
                parent.end(self._tables, status, at)
        parent.ended = True

    def close_stale(self, left: LeftBehind) -> list[str]:
        closed = []
        for kind, name in dict.fromkeys(_owner(run) for run in self._of_ours({})):
            # One run is locked at a time, and before the database is: drivers wait for either.
            with left(kind, name) as status:
                if status is not None and self._ended(kind, name, status):
                    closed.append(name)
        return closed

    def _ended(self, kind: Kind, name: str, status: Status) -> bool:
        """Ends the RUNNING rows of a locked run or sweep; False if there are none by now."""
        with self._tables.transaction():
            # Read again in the transaction: a driver that ended before the lock was taken may have written.
            running = [run for run in self._of_ours({"fedcore.run_id": name}) if _owner(run) == (kind, name)]
            for run in running:
                # A finished run's phase may lack rows: it is KILLED until the run is published again.
                phase = run.tags["fedcore.kind"] == "phase" and status == "FINISHED"
                self._tables.set_status(run.id, "KILLED" if phase else status, milliseconds())
                if status == "FINISHED":
                    remedy = f"`fedcore resume {name}` writes what is missing, or says why it cannot"
                    self._tables.add(run.id, tags={MISSING: remedy})
        return bool(running)

    def _of_ours(self, tags: Mapping[str, str]) -> list[FoundRun]:
        """Runs with these tags that are RUNNING and name a run or a sweep of fedcore."""
        running = self._tables.runs(tags, status="RUNNING")
        return [run for run in running if {"fedcore.run_id", "fedcore.kind"} <= run.tags.keys()]

    @property
    def _tables(self) -> MlflowTables:
        return self._opened.tables

    def _parent(self, run: str) -> OpenParent:
        return begun(self._parents.get(run), f"run {run}")

    def _phase(self, run: str, index: int) -> OpenRun:
        return begun(self._phases(run).get(index), f"phase {index}")

    def _phases(self, run: str) -> dict[int, OpenRun]:
        parent = self._parent(run)
        if parent.phases is None:
            found = self._tables.runs({"mlflow.parentRunId": parent.id})
            parent.phases = {int(phase.tags["fedcore.phase"]): OpenRun.found(phase) for phase in found}
        return parent.phases

    def _saved(self, run: OpenRun, model: PhaseModel | None) -> Logged | None:
        """The run's model, after its files are written; the caller adds its row. None if there is no model."""
        if model is None:
            return None
        logged = self._tables.models.of(run.id, MODEL)
        if logged is not None and logged.ready:
            return logged
        if logged is None:
            logged = self._tables.models.new(run.experiment)
        shutil.rmtree(logged.folder, ignore_errors=True)  # files of a killed driver or a failed attempt
        ids = {"model_id": logged.id, "model_uuid": logged.id, "run_id": run.id, "artifact_path": logged.location}
        self._models.save(model, logged.folder, ids)
        return logged


def _owner(run: FoundRun) -> tuple[Kind, str]:
    """Kind and fedcore's id of the run or sweep to which this row belongs."""
    return "sweep" if run.tags["fedcore.kind"] == "sweep" else "run", run.tags["fedcore.run_id"]
