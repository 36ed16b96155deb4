"""Parameters, budgets, metrics and models of a run in MLflow, written by one thread beside training.

The only file that imports mlflow, and only inside that thread: importing this module costs nothing, and no public
call waits for the store. One parent run per experiment (tags `fedcore.run_id`, `fedcore.kind` = experiment), one
child run per phase (also `fedcore.phase`), one run per sweep. Runs are found by these tags before one is made, rows
that MLflow has are not sent again: a resumed driver may repeat every call, and each point is there once.
Only `MlflowClient` is used: MLflow's fluent calls keep a current run per thread.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from tasks.tracking_writer import OpenRun, PhaseModel, Row, Writer, flat, requirements, scaled_records

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

__all__ = ["PhaseModel", "Status", "Tracker", "close_stale"]

Status = Literal["FINISHED", "FAILED", "KILLED"]
MODEL = "model"
# Errors that another attempt cannot mend; all others may be a store that is away.
FINAL = {"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "INVALID_STATE", "PERMISSION_DENIED", "ENDPOINT_NOT_FOUND"}


class Tracker:
    """The MLflow record of one run after another, and of the sweep around them.

    Every call returns at once and is carried out in order by the thread. MLflow being away stops nothing: entries
    wait and are tried again; `problem` says so in a sentence, and `close` whether all was delivered.
    """

    def __init__(self, uri: str, artifacts: Path, experiment: str) -> None:
        self._store = _Store(uri, artifacts, experiment)
        self._writer = Writer(self._store.write_rows, _is_final, self._store.doubt)
        self._begun = threading.Event()
        self._run_id: str | None = None

    def begin(self, run_id: str, name: str, params: Mapping[str, Any], tags: Mapping[str, str]) -> None:
        """Opens the parent run of `run_id`, set RUNNING again if it had ended; adds parameters it lacks, sets tags.

        Nested `params` become keys joined by dots. A parameter that is there keeps its value: MLflow never changes one.
        """
        begun, at = threading.Event(), _now()
        self._begun = begun

        def job() -> None:
            self._run_id = self._store.begin(run_id, name, params, tags, at)
            begun.set()

        self._writer.put(job)
        self._writer.put(self._store.warm)

    def begin_phase(self, index: int, params: Mapping[str, Any]) -> None:
        """Opens the child run of a phase; one that is FINISHED stays as it is."""
        at = _now()
        self._writer.put(lambda: self._store.begin_phase(index, params, at))

    def metrics(self, phase: int, step: int, values: Mapping[str, float]) -> None:
        """Appends one round's values. Steps of a key must grow; those that MLflow has already are not sent.

        A value that is not finite is written as NaN: the store would turn infinity into 1.8e308.
        """
        self._writer.put(Row(phase, step, dict(values), _now()))

    def end_phase(self, index: int, metrics: Mapping[str, float], model: PhaseModel | None = None) -> None:
        """Final values and the model of a phase, then its run is FINISHED. Repeated, it changes nothing."""
        at = _now()
        self._writer.put(lambda: self._store.end_phase(index, metrics, model, at))

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Sets tags of the parent run, for instance the link to the Prefect page."""
        self._writer.put(lambda: self._store.set_tags(tags))

    def finish(
        self,
        status: Status,
        metrics: Mapping[str, float] | None = None,
        artifacts: Mapping[str, str] | None = None,
        model: PhaseModel | None = None,
        register_as: str | None = None,
        privacy_tags: Mapping[str, str] | None = None,
    ) -> None:
        """Ends the parent run, and with the same status every phase that still runs.

        `artifacts` are texts by file name. The model becomes a version of the registered model `register_as` with
        `privacy_tags`, at most one per run, however often this is called.
        """
        at = _now()
        self._writer.put(
            lambda: self._store.finish(
                status, metrics or {}, artifacts or {}, model, register_as, privacy_tags or {}, at
            )
        )

    def begin_sweep(self, sweep_id: str, name: str, params: Mapping[str, Any]) -> None:
        """Opens the summary run of a sweep. Its cells are found by the tag `fedcore.sweep`, given to their `begin`."""
        at = _now()
        self._writer.put(lambda: self._store.begin_sweep(sweep_id, name, params, at))

    def finish_sweep(
        self, status: Status, table: Mapping[str, Sequence[Any]] | None = None, plots: Iterable[Path] = ()
    ) -> None:
        """Ends the summary run with a table (columns by name, shown by the page) and the plot files."""
        files, at = tuple(plots), _now()
        self._writer.put(lambda: self._store.finish_sweep(status, table or {}, files, at))

    def close_stale(self, is_running: Callable[[str], bool]) -> None:
        """As the function `close_stale`, in the thread; `is_running` must be true of the runs that this one begins."""
        self._writer.put(lambda: self._store.close_stale(is_running) and None)

    def mlflow_run_id(self, timeout: float | None = None) -> str | None:
        """MLflow's id of the parent run begun last; None if it is not there within `timeout` seconds."""
        return self._run_id if self._begun.wait(timeout) else None

    @property
    def problem(self) -> str | None:
        """A sentence about what MLflow has not taken; None while all is well."""
        return self._writer.problem

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until all that was given is in MLflow; False after `timeout` seconds."""
        return self._writer.flush(timeout)

    def close(self, timeout: float | None = None) -> bool:
        """Delivers what waits and ends the thread; False if something is not delivered. Never raises."""
        return self._writer.close(timeout)


def close_stale(uri: str, is_running: Callable[[str], bool]) -> list[str]:
    """Ends as KILLED every run of ours that is RUNNING and whose driver is gone; returns their fedcore run ids.

    `is_running` tells of a fedcore run or sweep id whether a living process drives it. Raises what MLflow raises.
    """
    path = _sqlite_path(uri)
    if path is not None and not path.exists():
        return []
    return _Store(uri, Path(), "").close_stale(is_running)


class _Store:
    """MLflow as the thread sees it. Every method may be repeated after a failure that left it half done."""

    def __init__(self, uri: str, artifacts: Path, experiment: str) -> None:
        self._uri, self._artifacts, self._experiment = uri, artifacts, experiment
        self._opened: MlflowClient | None = None
        self._experiment_id = ""
        self._tags: dict[str, str] = {}  # what the parent run is found by
        self._parent: OpenRun | None = None
        self._phases: dict[int, OpenRun] | None = None  # None: MLflow has to be asked
        self._sweep: OpenRun | None = None
        self._is_warm = False

    def doubt(self) -> None:
        """Forgets what the runs hold: a call failed, and may have taken effect all the same."""
        self._phases = None
        for run in (self._parent, self._sweep):
            if run is not None:
                run.fresh = False

    @property
    def _client(self) -> MlflowClient:
        if self._opened is None:
            self._opened = _open(self._uri)
        return self._opened

    def warm(self) -> None:
        """Pays, while training runs, what the first model costs: 2 s of imports and of looking at installed packages."""
        if not self._is_warm:
            self._is_warm = True
            with TemporaryDirectory() as folder:
                _save(PhaseModel(np.zeros(1), False, ("x",), (0, 1)), Path(folder, MODEL), None)

    def begin(
        self, run_id: str, name: str, params: Mapping[str, Any], tags: Mapping[str, str], at: int
    ) -> str:
        self._find_experiment()
        self._tags = {"fedcore.run_id": run_id}
        kind = {"fedcore.kind": "experiment"}
        self._parent = self._find_or_create(name, self._tags | kind, at)
        self._phases = {} if self._parent.fresh else None
        self._reopen(self._parent)
        self._add(self._parent, params=params, tags=tags)
        return self._parent.id

    def begin_phase(self, index: int, params: Mapping[str, Any], at: int) -> None:
        run = self._known_phases().get(index)
        if run is None:
            tags = {"mlflow.parentRunId": self._parent.id, "fedcore.kind": "phase", "fedcore.phase": str(index)}
            run = self._create(f"phase {index}", self._tags | tags, at)
            self._phases[index] = run
        if run.status != "FINISHED":
            self._reopen(run)
        self._add(run, params=params)

    def write_rows(self, rows: list[Row]) -> None:
        by_phase: dict[int, list[tuple[int, int, Mapping[str, float]]]] = {}
        for phase, step, values, at in rows:
            by_phase.setdefault(phase, []).append((step, at, values))
        for phase, points in by_phase.items():
            self._add(self._phase(phase), points=points)

    def end_phase(self, index: int, metrics: Mapping[str, float], model: PhaseModel | None, at: int) -> None:
        run = self._phase(index)
        self._add(run, summary=(metrics, at))
        if model is not None:
            self._log_model(run, model, {})
        if run.status != "FINISHED":
            self._end(run, "FINISHED", at)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        self._add(self._parent, tags=tags)

    def finish(
        self,
        status: Status,
        metrics: Mapping[str, float],
        artifacts: Mapping[str, str],
        model: PhaseModel | None,
        register_as: str | None,
        privacy_tags: Mapping[str, str],
        at: int,
    ) -> None:
        parent = self._parent
        for run in self._known_phases().values():
            if run.status == "RUNNING":
                self._end(run, status, at)
        self._log_texts(parent, artifacts)
        self._add(parent, summary=(metrics, at))
        if model is not None:
            logged = self._log_model(parent, model, privacy_tags)
            if register_as is not None:
                self._register(parent, logged, register_as, privacy_tags)
        self._end(parent, status, at)

    def begin_sweep(self, sweep_id: str, name: str, params: Mapping[str, Any], at: int) -> None:
        self._find_experiment()
        # fedcore.run_id, so that `close_stale` finds a sweep as it finds a run
        tags = {"fedcore.run_id": sweep_id, "fedcore.sweep": sweep_id, "fedcore.kind": "sweep"}
        self._sweep = self._find_or_create(name, tags, at)
        self._reopen(self._sweep)
        self._add(self._sweep, params=params)

    def finish_sweep(self, status: Status, table: Mapping[str, Sequence[Any]], plots: tuple[Path, ...], at: int) -> None:
        if table:
            rows = {"columns": list(table), "data": [list(row) for row in zip(*table.values(), strict=True)]}
            self._log_texts(self._sweep, {"table.json": json.dumps(rows, default=str)})
            shown = json.dumps([{"path": "table.json", "type": "table"}])
            self._add(self._sweep, tags={"mlflow.loggedArtifacts": shown})
        for plot in plots:
            self._client.log_artifact(self._sweep.id, str(plot))
        self._end(self._sweep, status, at)

    def close_stale(self, is_running: Callable[[str], bool]) -> list[str]:
        experiments = [found.experiment_id for found in self._client.search_experiments()]
        stale: dict[str, None] = {}
        for run in self._search(experiments, "attributes.status = 'RUNNING' and tags.`fedcore.run_id` LIKE '%'"):
            ours = run.data.tags["fedcore.run_id"]
            if ours in stale or not is_running(ours):
                self._client.set_terminated(run.info.run_id, "KILLED")
                stale[ours] = None
        return list(stale)
