"""MLflow as the tracker's thread sees it: runs found by tag before one is made, rows and models logged once.

The only file that imports mlflow, and only when called. Only `MlflowClient` is used: MLflow's fluent calls keep a
current run per thread. One parent run per experiment (tags `fedcore.run_id`, `fedcore.kind` = experiment), one child
run per phase (also `fedcore.phase`), one run per sweep.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from tasks.tracking_writer import PhaseModel, Row, Status, Table, finite_or_nan, flat, scaled_records

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run

MODEL = "model"
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # the writer tries again by itself, and keeps its queue
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
# Errors that another attempt cannot mend; all others may be a store that is away.
FINAL = {
    "INVALID_PARAMETER_VALUE",
    "BAD_REQUEST",
    "INVALID_STATE",
    "PERMISSION_DENIED",
    "RESOURCE_DOES_NOT_EXIST",
}


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
                _save(PhaseModel.blank(), Path(folder, MODEL), {})

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
                self._register(run, logged, register_as, privacy_tags)
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
        return _open(self._uri, self._artifacts)

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
        """The run's model, made unless it is there already."""
        from mlflow.entities import LoggedModelOutput

        logged, outputs = None, None
        if not run.fresh:
            condition = f"source_run_id = '{run.id}' AND name = '{MODEL}'"
            logged = next(iter(self._client.search_logged_models([self._experiment_id], condition)), None)
        if logged is None:
            run.fresh = False
            logged = self._client.create_logged_model(self._experiment_id, MODEL, run.id, dict(tags))
        elif str(logged.status) == "READY":
            return logged
        else:
            outputs = self._client.get_run(run.id).outputs
        with TemporaryDirectory() as folder:
            place = Path(folder, MODEL)
            identity = {"model_id": logged.model_id, "model_uuid": logged.model_id, "run_id": run.id}
            _save(model, place, identity | {"artifact_path": logged.artifact_location})
            self._client.log_model_artifacts(logged.model_id, str(place))
        if not outputs or all(output.model_id != logged.model_id for output in outputs.model_outputs):
            self._client.log_outputs(run.id, [LoggedModelOutput(logged.model_id, step=0)])
        return self._client.finalize_logged_model(logged.model_id, "READY")

    def _register(self, run: _OpenRun, logged: LoggedModel, name: str, tags: Mapping[str, str]) -> None:
        if any(found.name == name for found in self._client.search_model_versions(f"run_id = '{run.id}'")):
            return
        if not self._client.search_registered_models(f"name = '{name}'"):
            try:
                self._client.create_registered_model(name)
            except Exception as error:
                if getattr(error, "error_code", None) != "RESOURCE_ALREADY_EXISTS":
                    raise
        # The location, not models:/<id>: MLflow would look that up in whatever store the environment names.
        self._client.create_model_version(
            name, logged.artifact_location, run.id, dict(tags), model_id=logged.model_id, await_creation_for=0
        )


def _begun(run: _OpenRun | None, what: str) -> _OpenRun:
    if run is None:
        raise LookupError(f"{what} was not begun")
    return run


def _save(model: PhaseModel, place: Path, identity: Mapping[str, str]) -> None:
    """Writes the model as a folder in MLflow's scikit-learn flavour, with signature and made-up example."""
    import mlflow.sklearn
    from mlflow.models import Model, infer_signature

    estimator, example = model.estimator(), model.example()
    mlflow.sklearn.save_model(
        estimator,
        place,
        mlflow_model=Model(**identity),
        signature=infer_signature(example, estimator.predict(example)),
        input_example=example,
        pip_requirements=_requirements(),
        skops_trusted_types=[f"{scaled_records.__module__}.{scaled_records.__name__}"],
    )


@cache
def _requirements() -> list[str]:
    """What a model needs, with versions: MLflow would infer it, which takes seconds.

    It looks up each of them again for each model, so packages that these bring along are not named.
    """
    return [f"{name}=={version(name)}" for name in ("scikit-learn", "numpy", "skops")]


def _open(uri: str, artifacts: Path) -> MlflowClient:
    """A client of the store; a missing SQLite file is made. Raises OSError, sqlite3 or MLflow errors."""
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    warnings.filterwarnings("ignore", module="mlflow")  # its own use of pandas and of SQLAlchemy
    import mlflow

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    path = sqlite_path(uri)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=60):
            if not path.exists() or path.stat().st_size == 0:
                _make_database(path, artifacts)
        # MLflow would try a database that cannot be written for minutes, in silence.
        with closing(sqlite3.connect(path, timeout=5.0)) as connection:
            connection.execute("BEGIN IMMEDIATE")
    return mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)


def _make_database(path: Path, artifacts: Path) -> None:
    """Makes MLflow's tables under another name, then renames: a kill leaves no half-made database."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for left in path.parent.glob(f"{path.name}.making*"):
        left.unlink()
    making = path.with_name(f"{path.name}.making")
    with closing(sqlite3.connect(making)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")  # a person reads the page while a run writes
    SqlAlchemyStore(f"sqlite:///{making}", artifacts.absolute().as_uri()).engine.dispose()
    making.replace(path)


def sqlite_path(uri: str) -> Path | None:
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def is_final(error: Exception) -> bool:
    """True if another attempt cannot succeed: a mistake in an entry, not a store that is away."""
    mistakes = (LookupError, TypeError, ValueError, AttributeError, ImportError)
    return isinstance(error, mistakes) or getattr(error, "error_code", None) in FINAL
