"""A run of MLflow that is written to, and what it has already: nothing is written twice."""

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
    """A run that is written to; `last` is step and value of a key's last point, None if MLflow has to be asked."""

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
        """Forgets what is known of it: a call failed, and may have had its effect, or none."""
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
        """Writes what the run lacks: parameters, points after the last step, changed values."""
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
    """A run with its phases, by index; None if MLflow has to be asked."""

    phases: dict[int, OpenRun] | None = None
    ended: bool = False


def begun(run: R | None, what: str) -> R:
    """The run. Raises LookupError if there is none."""
    if run is None:
        raise LookupError(f"{what} was not begun")
    return run


def finite_or_nan(value: float) -> float:
    """The value, NaN if it is infinite: MLflow's store would turn infinity into 1.8e308."""
    return float(value) if np.isfinite(value) else float("nan")


def flat(params: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Texts by key; those of nested mappings under keys joined by dots."""
    found: dict[str, str] = {}
    for key, value in params.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = str(value)
    return found
