"""Outcome of a sweep as commands show it: results, costs, and paths of its plot and table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedcore.experiment.patience import PatienceConfig
from fedcore.experiment.result import RunResult
from flows.ladders import LadderState
from flows.reports.settings import Settings


@dataclass(frozen=True)
class SweepOutcome:
    """Outcome of a sweep: id, finished results, accounts over all cells, paths of plot and table."""

    sweep: str
    cells: int
    results: list[RunResult]
    silos: list[dict[str, Any]]
    statement: str
    plot: str | None
    table: str | None = None
    """A CSV file with a row for each finished cell."""
    settings: Mapping[str, Settings] = field(default_factory=dict)
    """By run, the values that the sweep varies beside method, target, seed and repetition."""
    patience: PatienceConfig | None = None
    ladders: tuple[LadderState, ...] = ()
    """States of the ladders, with patience; `cells` is then an upper bound."""

    def as_json(self) -> dict[str, Any]:
        results = [result.as_json() | {"settings": dict(self.settings.get(result.run, {}))} for result in self.results]
        values = {**vars(self), "results": results}
        del values["patience"], values["ladders"], values["settings"]
        if self.patience is not None:
            values["patience"] = self.patience.model_dump(mode="json") | {"statement": self.patience.statement}
            values["ladders"] = [ladder.as_json() for ladder in self.ladders]
        return values
