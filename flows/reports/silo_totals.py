"""A silo's account over the cells of a sweep, as plain values and as a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedcore.directed_rounding import shown_up


@dataclass(frozen=True)
class SiloTotal:
    """One silo's account over the cells that used its records. `epsilon` is infinite if a cell had no noise.

    `statistics`: number of releases of moments for the cells' constants, each counted once.
    """

    seed: int | None
    silo: str
    n: int
    cells: int
    without_noise: int
    statistics: int
    epsilon_private: float
    delta: float
    unit: str = "records"
    """Unit of privacy; cells with another unit have accounts of their own."""
    planned: bool = False
    """True for one plan, fixed before its first answer; false if mu^2 of runs add up over time."""
    refused: int = 0
    """Number of cells that a silo refused before any answer; they are not counted."""
    in_full: int = 0
    """Number of cells that have not ended; they count in full."""

    @property
    def epsilon(self) -> float:
        return math.inf if self.without_noise else self.epsilon_private


def totals_as_json(totals: Sequence[SiloTotal]) -> list[dict[str, Any]]:
    """The totals as plain values, with null for an infinite epsilon."""
    return [
        {
            "seed": total.seed,
            "silo": total.silo,
            "n": total.n,
            "cells": total.cells,
            "cells_without_noise": total.without_noise,
            "statistics": total.statistics,
            "delta": total.delta,
            "unit": total.unit,
            "epsilon": total.epsilon if math.isfinite(total.epsilon) else None,
            "epsilon_of_noised_cells": total.epsilon_private,
            "counted_as": "one plan" if total.planned else "gdp",
            "cells_refused": total.refused,
            "cells_counted_in_full": total.in_full,
        }
        for total in totals
    ]


def totals_sentence(totals: Sequence[SiloTotal]) -> str:
    """Sentences on the largest account, for the terminal."""
    if not totals:
        return "No silo was asked."
    worst = max(totals, key=lambda total: total.epsilon_private)
    noised = worst.cells - worst.without_noise
    shared = f" and {worst.statistics} release(s) of moments that they share" if worst.statistics else ""
    text = (
        f"All cells together, since they ask the same records: the {noised} noised cells{shared} spend "
        f"{'at most ' if worst.planned else ''}epsilon {shown_up(worst.epsilon_private)} at delta "
        f"{shown_up(worst.delta, 3)} at silo {worst.silo}, the largest "
        f"of {len(totals)} accounts{'' if worst.unit == 'records' else f', for {worst.unit}'}"
    )
    if worst.planned:
        text += "; they are one plan, which was fixed before its first answer"
    else:
        text += "; they were chosen over time, so mu^2 of those that were begun add up, as caps by gdp have it"
    if worst.in_full:
        text += f"; {worst.in_full} that failed, were stopped, not tried or are to come count in full"
    if worst.refused:
        text += f"; {worst.refused} more were refused before any answer and are left out"
    if worst.without_noise:
        text += f"; {worst.without_noise} more without noise protect nothing"
    seeds = {total.seed for total in totals}
    if len(seeds) > 1:
        text += f". Each of the {len(seeds)} seeds deals its records anew and is counted by itself"
    return text + "."
