"""What is shown of a sweep: results, costs, and where its plot and table are."""

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
    """What is shown of a sweep: its id, its finished results, what all its cells cost the silos, where its plot is."""

    sweep: str
    cells: int
    results: list[RunResult]
    silos: list[dict[str, Any]]
    statement: str
    plot: str | None
    table: str | None = None
    """A CSV file with a row for each finished cell."""
    settings: Mapping[str, Settings] = field(default_factory=dict)
    """By run, what the sweep varies beside method, target, seed and repetition."""
    patience: PatienceConfig | None = None
    ladders: tuple[LadderState, ...] = ()
    """Of patience: what is chosen, what was abandoned and why, what was not tried. `cells` are the most that are run.
    """

    def as_json(self) -> dict[str, Any]:
        results = [result.as_json() | {"settings": dict(self.settings.get(result.run, {}))} for result in self.results]
        told = {**vars(self), "results": results}
        del told["patience"], told["ladders"], told["settings"]
        if self.patience is not None:
            told["patience"] = self.patience.model_dump(mode="json") | {"statement": self.patience.statement}
            told["ladders"] = [ladder.as_json() for ladder in self.ladders]
        return told
