"""Result of one instrument, and the error probabilities that all instruments of one audit share."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

TESTS = 1e-4
"""Probability that any test of one audit alarms at a correct silo; shared in equal parts (Bonferroni)."""
BOUNDS = 1e-4
"""Probability that any lower bound of one audit exceeds the truth: joint confidence 1 - 1e-4."""


@dataclass(frozen=True)
class Finding:
    """Result of one instrument.

    `statistic` and `threshold` have the units that `detail`, one sentence, explains; NaN if nothing was measured.
    `false_alarm`: upper bound on the probability that a correct silo does not pass; 0 for an instrument without chance.
    """

    instrument: str
    passed: bool
    statistic: float
    threshold: float
    false_alarm: float
    detail: str

    def as_json(self) -> dict[str, Any]:
        """The finding as plain JSON values; NaN and infinite numbers as null."""
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in asdict(self).items()
        }
