"""Runs on disk: their folders and states."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ValidationError

from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import check_schema
from fedcore.experiment.result import AbandonedRun, RunResult
from fedcore.experiment.stored.configs import loaded_experiment
from fedcore.home import Home
from flows.run_lock import Kind, is_driven
from flows.run_lock import store_path as store_path
from tasks.run_file import is_damaged, read_meta, read_progress

REFUSALS = ("cap", "policy")
"""Codes of a silo's final refusals: by a run's charges and plan alone, before any answer."""

State = Literal["RUNNING", "FINISHED", "FAILED", "KILLED", "ABANDONED"]
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class RunRecord:
    """State of a run, read from its folder. A RUNNING run whose driver is gone is KILLED: it can be resumed.

    `abandoned`: record of a run that a sweep's patience has ended, which cannot be resumed.
    """

    run: str
    state: State
    phase: int | None
    round: int | None
    rounds: int
    config: ExperimentConfig
    result: RunResult | None
    message: str
    sweep: str | None
    tracked: bool
    began: datetime
    """Time of the first start; for runs of version 0.2, of the last change of the folder."""
    abandoned: AbandonedRun | None = None

    @property
    def complete(self) -> bool:
        """True if the run is finished and MLflow has all of it, or it is not tracked."""
        return self.result is not None and (self.tracked or not self.config.tracking.mlflow)


def statistics_path(home: Home, statistics: str) -> Path:
    """Path of the checkpoint of a release of statistics, which runs may share."""
    return home.statistics / statistics / "checkpoint.sqlite"


def refuse_if_damaged(home: Home, run: str) -> None:
    """Raises InputError for a damaged checkpoint, for which `read_run` returns None."""
    path = store_path(home, run)
    if is_damaged(path):
        raise InputError(
            f"run {run}: its checkpoint {path} is damaged; restore a copy of it, or delete its folder and start the "
            "run again with `fedcore run CONFIG`"
        )


def read_run(home: Home, run: str) -> RunRecord | None:
    """The record of a run; None if there is no such run. Raises InputError for a run of an older schema."""
    path = store_path(home, run)
    meta = read_meta(path)
    if "parameters" not in meta:
        return None
    check_schema(f"run {run}", meta.get("schema"))
    state: State = meta.get("state", "RUNNING")  # type: ignore[assignment]
    if state == "RUNNING" and not is_driven(home, run):
        meta = read_meta(path) or meta  # the run may have ended and released its lock since the first read
        state = meta.get("state", "RUNNING")  # type: ignore[assignment]
        state = "KILLED" if state == "RUNNING" else state
    progress = read_progress(path)
    return RunRecord(
        run=run,
        state=state,
        phase=progress[0] if progress else None,
        round=progress[1] if progress else None,
        rounds=int(meta.get("rounds", 0)),
        config=_stored(lambda text: loaded_experiment(json.loads(text), home.anchor), meta["parameters"], run),
        result=_stored(RunResult.model_validate_json, meta["result"], run) if "result" in meta else None,
        message=meta.get("message", ""),
        sweep=meta.get("sweep"),
        tracked="tracked" in meta,
        began=_began(path, meta),
        abandoned=_abandoned(meta, run),
    )


def _stored(read: Callable[[str], M], text: str, run: str) -> M:
    """Value that a checkpoint stores of a run. Raises InputError for values of another version."""
    try:
        return read(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        why = f"{'.'.join(map(str, first['loc'])) or 'its text'}: {first['msg']}"
    except ValueError as error:
        why = f"its text: {error}"
    raise InputError(f"run {run}: this version does not take what is kept of it ({why}); another version made it")


def _began(path: Path, meta: dict[str, str]) -> datetime:
    if "began" in meta:
        return datetime.fromisoformat(meta["began"])
    return datetime.fromtimestamp(path.parent.stat().st_mtime, UTC)


def read_abandoned(home: Home, run: str) -> AbandonedRun | None:
    """Record of an abandoned run; None for any other. Raises InputError for a run of an older schema."""
    meta = read_meta(store_path(home, run))
    if (found := _abandoned(meta, run)) is not None:
        check_schema(f"run {run}", meta.get("schema"))
    return found


def _abandoned(meta: dict[str, str], run: str) -> AbandonedRun | None:
    return (
        _stored(AbandonedRun.model_validate_json, meta["abandoned"], run) if meta.get("state") == "ABANDONED" else None
    )


def is_refused(home: Home, run: str) -> bool:
    """True if a silo refused the run before any answer, and the run was not started again."""
    return "refused" in read_meta(store_path(home, run))


def is_begun(home: Home, run: str) -> bool:
    """True if the run was started and may have answers."""
    meta = read_meta(store_path(home, run))
    return "parameters" in meta and "refused" not in meta


def read_result(home: Home, run: str) -> RunResult | None:
    """Result of a finished run, read faster than by `read_run`; None for any other. Raises InputError as `read_run`."""
    meta = read_meta(store_path(home, run))
    if "parameters" not in meta or "result" not in meta:
        return None
    check_schema(f"run {run}", meta.get("schema"))
    return _stored(RunResult.model_validate_json, meta["result"], run)


def all_runs(home: Home) -> tuple[list[RunRecord], list[str]]:
    """Records of all runs, the newest last, and ids of runs of an older schema, which are not read.

    Raises InputError if the home is a file.
    """
    records: list[RunRecord] = []
    older: list[str] = []
    if not home.check().runs.is_dir():
        return records, older
    folders = [path for path in home.runs.iterdir() if path.is_dir()]
    for folder in sorted(folders, key=lambda path: path.stat().st_mtime):
        try:
            record = read_run(home, folder.name)
        except InputError:
            older.append(folder.name)
            continue
        if record is not None:
            records.append(record)
    return records, older


def damaged_runs(home: Home, known: Collection[str]) -> list[str]:
    """Ids of runs with damaged checkpoints, which `all_runs` leaves out. `known`: ids that are not checked."""
    names = sorted(path.name for path in home.runs.iterdir()) if home.runs.is_dir() else []
    return [name for name in names if name not in known and is_damaged(store_path(home, name))]


_NAMED = 8
"""Most ids that an error names."""


def find(home: Home, name: str) -> tuple[str, Kind]:
    """Full id and kind of a run or sweep, by its id or an unambiguous beginning.

    Raises InputError for an ambiguous beginning; the message names the newest matching ids.
    """
    home.check()
    if not name.strip():
        raise InputError("the id is empty; `fedcore runs` lists ids, and a beginning of one is enough")
    found: list[tuple[str, Kind]] = []
    for root, kind in ((home.runs, "run"), (home.sweeps, "sweep")):
        names = sorted(os.listdir(root)) if root.is_dir() else []
        if name in names:
            return name, kind  # type: ignore[return-value]
        found += [(known, kind) for known in names if known.startswith(name)]  # type: ignore[misc]
    if len(found) == 1:
        return found[0]
    if not found:
        raise InputError(f"there is no run or sweep {name!r} in {home.root}; `fedcore runs` lists them")
    found.sort(key=lambda each: _changed(home, *each), reverse=True)
    listed = ", ".join(f"{kind} {known}" for known, kind in found[:_NAMED])
    more = f" and {len(found) - _NAMED} older ones" if len(found) > _NAMED else ""
    raise InputError(
        f"{name!r} is the beginning of {len(found)} ids, the newest first: {listed}{more}; give more of the one that "
        "is meant"
    )


def _changed(home: Home, name: str, kind: Kind) -> float:
    try:
        return ((home.runs if kind == "run" else home.sweeps) / name).stat().st_mtime
    except OSError:
        return 0.0
