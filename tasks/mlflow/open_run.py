"""An open run of MLflow with a record of its rows, so that no row is written twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from tasks.mlflow.tables import MlflowTables, Point
from tasks.tracking.run_writer import MISSING, FoundRun, Row, Status

R = TypeVar("R", bound="OpenRun")


@dataclass
class OpenRun:
    """An open run. `last`: step and value of each key's last point; None if the database has to be read."""

    id: str
    experiment: int
    status: str = "RUNNING"
    params: set[str] = field(default_factory=set)
    last: dict[str, tuple[int, float]] | None = None

    @classmethod
    def found(cls, run: FoundRun) -> OpenRun:
        return cls(run.id, run.experiment, run.status, set(run.params))

    def resume(self, tables: MlflowTables) -> None:
        if self.status != "RUNNING":
            tables.set_status(self.id, "RUNNING")
            tables.untag(self.id, MISSING)
            self.status = "RUNNING"

    def doubt(self) -> None:
        """Drops the cached record: a call failed, and may or may not have taken effect."""
        self.status, self.params, self.last = "", set(), None

    def end(self, tables: MlflowTables, status: Status, at: int) -> None:
        tables.set_status(self.id, status, at)
        self.status = status

    def add(
        self,
        tables: MlflowTables,
        params: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        rows: Iterable[Row] = (),
        summary: Mapping[str, float] | None = None,
        at: int = 0,
    ) -> None:
        """Writes only new rows: missing parameters, points after the last step, changed values."""
        last = tables.last_points(self.id) if self.last is None else dict(self.last)
        new = {key: value for key, value in flat(params or {}).items() if key not in self.params}
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
        tables.add(self.id, new, {key: str(value) for key, value in (tags or {}).items()}, points)
        self.params |= set(new)
        self.last = last

    def log_texts(self, tables: MlflowTables, texts: Mapping[str, str]) -> None:
        folder = tables.artifacts(self.id)
        for name, text in texts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")


@dataclass
class OpenParent(OpenRun):
    """A parent run. `phases`: its child runs by index; None if the database has to be read."""

    phases: dict[int, OpenRun] | None = None
    ended: bool = False


def begun(run: R | None, name: str) -> R:
    """The run. Raises LookupError, with this name, if there is none."""
    if run is None:
        raise LookupError(f"{name} was not begun")
    return run


def finite_or_nan(value: float) -> float:
    """The value, NaN if it is infinite: MLflow's store would turn infinity into 1.8e308."""
    return float(value) if np.isfinite(value) else float("nan")


def flat(params: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """The parameters as texts; keys of nested mappings are joined by dots."""
    found: dict[str, str] = {}
    for key, value in params.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = str(value)
    return found
