"""MLflow as the tracker's thread sees it: runs found by tag before one is made, rows and models logged once.

With `mlflow_database` and `mlflow_models` the only importer of mlflow, and only when called. Only `MlflowClient` is
used: MLflow's fluent calls keep a current run per thread. One parent run per experiment (tags `fedcore.run_id`,
`fedcore.kind` = experiment), one child run per phase (also `fedcore.phase`), one run per sweep.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tasks.mlflow_database import open_client, sqlite_path
from tasks.mlflow_models import MODEL, log_model, register, save_model
from tasks.tracking_writer import PhaseModel, Row, Status, Table, finite_or_nan, flat

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run

@dataclass
class _OpenRun:
    """A run that is written to; `last` is step and value of a key's last point, `unread` keys to ask for."""

    id: str
    status: str = "RUNNING"
    params: set[str] = field(default_factory=set)
    unread: set[str] = field(default_factory=set)
    last: dict[str, tuple[int, float]] = field(default_factory=dict)
    fresh: bool = False  # made by this process, and holds no model

    @classmethod
    def found(cls, run: Run) -> _OpenRun:
        return cls(run.info.run_id, run.info.status, set(run.data.params), set(run.data.metrics))


class MlflowStore:
    """MLflow as the thread sees it. Every method may be repeated after a failure that left it half done."""

    def __init__(self, uri: str, artifacts: Path, experiment: str) -> None:
        self._uri, self._artifacts, self._experiment = uri, artifacts, experiment
        self._run_id = ""
        self._run: _OpenRun | None = None
        self._phases: dict[int, _OpenRun] | None = None  # None: MLflow has to be asked
        self._sweep: _OpenRun | None = None
        self._is_warm = False

    def doubt(self) -> None:
        """Forgets which phases and models there are: a call failed, and may have had its effect."""
        self._phases = None
        if self._run is not None:
            self._run.fresh = False

    def warm(self) -> None:
        """Pays beforehand what the first model costs: imports, a look at all installed packages."""
        if not self._is_warm:
            self._is_warm = True
            with TemporaryDirectory() as folder:
                save_model(PhaseModel.blank(), Path(folder, MODEL), {})

    def begin(
        self, run_id: str, name: str, params: Mapping[str, Any], tags: Mapping[str, str], at: int
    ) -> str:
        self._run_id = run_id
        self._run = self._find_or_create(name, {"fedcore.run_id": run_id, "fedcore.kind": "experiment"}, at)
        self._phases = {} if self._run.fresh else None
        self._resume(self._run)
        self._add(self._run, params=params, tags=tags)
        return self._run.id

    def begin_phase(self, index: int, params: Mapping[str, Any], at: int) -> None:
        phases = self._known_phases()
        if index not in phases:
            tags = {"mlflow.parentRunId": self._parent.id, "fedcore.run_id": self._run_id}
            tags |= {"fedcore.kind": "phase", "fedcore.phase": str(index)}
            phases[index] = self._create(f"phase {index}", tags, at)
        if phases[index].status != "FINISHED":
            self._resume(phases[index])
        self._add(phases[index], params=params)

    def write_rows(self, rows: list[Row]) -> None:
        for index in dict.fromkeys(row.phase for row in rows):
            self._add(self._phase(index), rows=[row for row in rows if row.phase == index])

    def end_phase(self, index: int, metrics: Mapping[str, float], model: PhaseModel | None, at: int) -> None:
        run = self._phase(index)
        if run.status == "FINISHED":
            return
        self._add(run, summary=metrics, at=at)
        if model is not None:
            self._log_model(run, model, {})
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
        run = self._parent
        for phase in self._known_phases().values():
            if phase.status == "RUNNING":
                self._end(phase, status, at)
        self._log_texts(run, artifacts)
        self._add(run, summary=metrics, at=at)
        if model is not None:
            logged = self._log_model(run, model, privacy_tags)
            if register_as is not None:
                register(self._client, run.id, logged, register_as, privacy_tags)
        if run.status != status:
            self._end(run, status, at)

    def begin_sweep(self, sweep_id: str, name: str, params: Mapping[str, Any], at: int) -> None:
        # fedcore.run_id too, so that a stale sweep is found like a stale run
        tags = {"fedcore.run_id": sweep_id, "fedcore.sweep": sweep_id, "fedcore.kind": "sweep"}
        self._sweep = self._find_or_create(name, tags, at)
        self._resume(self._sweep)
        self._add(self._sweep, params=params)

    def finish_sweep(self, status: Status, table: Table, plots: tuple[Path, ...], at: int) -> None:
        run = _begun(self._sweep, "a sweep")
        if table:
            rows = {"columns": list(table), "data": list(zip(*table.values(), strict=True))}
            self._log_texts(run, {"table.json": json.dumps(rows, default=str)})
            # The tag with which MLflow's own log_table, which can only append, makes the page show a table.
            self._add(run, tags={"mlflow.loggedArtifacts": '[{"path": "table.json", "type": "table"}]'})
        for plot in plots:
            self._client.log_artifact(run.id, str(plot))
        if run.status != status:
            self._end(run, status, at)

    def close_stale(self, is_running: Callable[[str], bool]) -> list[str]:
        gone: dict[str, bool] = {}
        experiments = [experiment.experiment_id for experiment in self._client.search_experiments()]
        condition = "attributes.status = 'RUNNING' AND tags.`fedcore.run_id` LIKE '%'"
        for run in self._search(experiments, condition):
            run_id = run.data.tags["fedcore.run_id"]
            if run_id not in gone:
                gone[run_id] = not is_running(run_id)
            if gone[run_id]:
                self._client.set_terminated(run.info.run_id, "KILLED")
        return [run_id for run_id, is_gone in gone.items() if is_gone]

    @cached_property
    def _client(self) -> MlflowClient:
        return open_client(self._uri, self._artifacts)

    @cached_property
    def _experiment_id(self) -> str:
        """The experiment's id; made if missing, restored if a person deleted it."""
        found = self._client.get_experiment_by_name(self._experiment)
        if found is None:
            # Behind a server, the server knows where artifacts go.
            place = self._artifacts.absolute().as_uri() if sqlite_path(self._uri) else None
            try:
                # Without this tag the page opens on views for language models instead of the runs.
                tags = {"mlflow.experimentKind": "custom_model_development"}
                return self._client.create_experiment(self._experiment, artifact_location=place, tags=tags)
            except Exception:  # another process was faster
                found = self._client.get_experiment_by_name(self._experiment)
                if found is None:
                    raise
        if found.lifecycle_stage == "deleted":
            self._client.restore_experiment(found.experiment_id)
        return found.experiment_id

    @property
    def _parent(self) -> _OpenRun:
        return _begun(self._run, "a run")

    def _phase(self, index: int) -> _OpenRun:
        return _begun(self._known_phases().get(index), f"phase {index}")

    def _known_phases(self) -> dict[int, _OpenRun]:
        if self._phases is None:
            runs = self._search([self._experiment_id], f"tags.`mlflow.parentRunId` = '{self._parent.id}'")
            self._phases = {int(run.data.tags["fedcore.phase"]): _OpenRun.found(run) for run in runs}
        return self._phases

    def _search(self, experiments: list[str], filter_string: str) -> list[Run]:
        runs: list[Run] = []
        page = None
        while True:
            found = self._client.search_runs(
                experiments, filter_string, order_by=["attributes.start_time ASC"], page_token=page
            )
            runs += found
            page = found.token
            if not page:
                return runs

    def _find_or_create(self, name: str, tags: dict[str, str], at: int) -> _OpenRun:
        conditions = " AND ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
        found = self._search([self._experiment_id], conditions)
        return _OpenRun.found(found[0]) if found else self._create(name, tags, at)

    def _create(self, name: str, tags: dict[str, str], at: int) -> _OpenRun:
        run = self._client.create_run(self._experiment_id, start_time=at, tags=tags, run_name=name)
        return _OpenRun(run.info.run_id, fresh=True)

    def _resume(self, run: _OpenRun) -> None:
        if run.status != "RUNNING":
            self._client.update_run(run.id, status="RUNNING")
            run.status = "RUNNING"

    def _end(self, run: _OpenRun, status: Status, at: int) -> None:
        self._client.set_terminated(run.id, status, at)
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
        """Writes in one batch what the run lacks: parameters, points after the last step, changed values."""
        from mlflow.entities import Metric, Param, RunTag

        new = [Param(key, value) for key, value in flat(params or {}).items() if key not in run.params]
        last: dict[str, tuple[int, float]] = {}
        metrics = []
        for row in rows:
            for key, value in row.values.items():
                before = last.get(key) or self._last(run, key)
                if before is None or row.step > before[0]:
                    last[key] = (row.step, finite_or_nan(value))
                    metrics.append(Metric(key, last[key][1], row.timestamp, row.step))
        for key, value in (summary or {}).items():
            step, before_value = self._last(run, key) or (0, None)
            last[key] = (step, finite_or_nan(value))
            if before_value is None or str(before_value) != str(last[key][1]):
                metrics.append(Metric(key, last[key][1], at, step))
        if metrics or new or tags:
            labels = [RunTag(key, str(value)) for key, value in (tags or {}).items()]
            self._client.log_batch(run.id, metrics, new, labels, synchronous=True)
        run.params |= {param.key for param in new}
        run.last |= last

    def _last(self, run: _OpenRun, key: str) -> tuple[int, float] | None:
        """Step and value of the last point of a key; MLflow is asked once, and not of a run made here."""
        if key in run.unread:
            points = self._client.get_metric_history(run.id, key)
            newest = max(points, key=lambda point: (point.step, point.timestamp))
            run.last[key] = (newest.step, newest.value)
            run.unread.remove(key)
        return run.last.get(key)

    def _log_texts(self, run: _OpenRun, texts: Mapping[str, str]) -> None:
        if texts:
            with TemporaryDirectory() as folder:
                for name, text in texts.items():
                    Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
                    Path(folder, name).write_text(text, encoding="utf-8")
                self._client.log_artifacts(run.id, folder)

    def _log_model(self, run: _OpenRun, model: PhaseModel, tags: Mapping[str, str]) -> LoggedModel:
        fresh, run.fresh = run.fresh, False  # whether or not the call succeeds, there may be a model then
        return log_model(self._client, self._experiment_id, run.id, fresh, model, tags)


def _begun(run: _OpenRun | None, what: str) -> _OpenRun:
    if run is None:
        raise LookupError(f"{what} was not begun")
    return run
