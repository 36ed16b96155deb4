"""Published values: one for each curve, place and trial, and means over trials with their spread."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from studies.figures.formats import printed
from studies.figures.trials import half_width

SpreadOf = Literal["", "interval 95%", "simultaneous 95%", "deviation"]
"""Kind of spread: half width of a mean's 95 % interval, of intervals that hold jointly with 95 %, or a deviation."""


@dataclass(frozen=True)
class Place:
    """Place of a value: the curve of a figure, its panel, and the value `at` of the axis's `key`."""

    figure: str
    measure: str
    curve: str
    panel: str = ""
    key: str = ""
    at: str = ""

    @property
    def words(self) -> str:
        """The place as a phrase for messages."""
        parts = [f"{self.figure}: {self.measure} of {self.curve}"]
        parts += [f"in panel {self.panel}"] if self.panel else []
        parts += [f"at {self.key} {self.at}"] if self.key else []
        return " ".join(parts)


@dataclass(frozen=True)
class Measured:
    """One printed value at a place: of one trial (`seed`, `repetition`), or the mean of `trials` with its spread."""

    place: Place
    value: str
    seed: int | None = None
    repetition: int | None = None
    trials: int = 1
    spread: str = ""
    spread_of: SpreadOf = ""

    @property
    def single(self) -> bool:
        """True if the value is of one trial."""
        return self.seed is not None


def mean_of(place: Place, metric: str, values: Sequence[float]) -> Measured:
    """Mean of these trials' values with its 95 % interval, in the digits of the metric. One trial has no interval."""
    interval = half_width(values)
    return Measured(
        place,
        printed(metric, statistics.fmean(values)),
        trials=len(values),
        spread="" if interval is None else printed(metric, interval),
        spread_of="" if interval is None else "interval 95%",
    )
