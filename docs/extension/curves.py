"""Curves of published rows, and words for their axes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

DIFFERENCE = re.compile(r"^(?P<measure>.*), difference from (?P<baseline>.*)$")
NO_NOISE = "none"
AXES = {
    "privacy.epsilon": "epsilon of the run, per record",
    "privacy.noise_multiplier": "noise multiplier",
    "rounds": "rounds",
    "data.condition": "condition number of the data",
    "data.offset": "distance of the features' centre from 0",
    "data.records": "records of a silo",
    "algorithm.local_steps": "local steps of a round",
}
MEASURES = {"train_loss": "training loss"}


@dataclass(frozen=True)
class Curve:
    """Means of one curve by place; `spreads` holds the half widths of those that have one."""

    label: str
    values: dict[str, float]
    spreads: dict[str, float]


def curves(rows: Sequence[Mapping[str, str]]) -> list[Curve]:
    """Curves of a figure's rows, in order. A panel of the figure is part of a curve's label."""
    found: dict[str, Curve] = {}
    for row in rows:
        label = ", ".join(filter(None, (row["curve"], row["panel"])))
        curve = found.setdefault(label, Curve(label, {}, {}))
        curve.values[row["at"]] = float(row["value"])
        if row["spread"]:
            curve.spreads[row["at"]] = float(row["spread"])
    return list(found.values())


def axis(key: str) -> str:
    """Words for the axis of a key."""
    return AXES.get(key, key.rpartition(".")[2].replace("_", " "))


def measured(measure: str) -> str:
    """Words for a measure."""
    difference = DIFFERENCE.match(measure)
    if difference is None:
        return MEASURES.get(measure, measure)
    return f"{measured(difference['measure'])}, difference from {difference['baseline']}"


def joined(curve: Curve, at: Mapping[str, float]) -> list[list[str]]:
    """Places that a line joins: neighbours on the axis that the curve has; no line leads to `none`."""
    runs: list[list[str]] = [[]]
    for place in at:
        if place == NO_NOISE or place not in curve.values:
            runs.append([])
        if place in curve.values:
            runs[-1].append(place)
    return [run for run in runs if run]
