"""Rounds of DIFF2 from one restart to the next, and how restarts and the differences between them share a budget."""

from __future__ import annotations

from dataclasses import dataclass

PAPER_SPLIT = 0.8
"""1 / u of the experiments of Murata and Suzuki 2023, u = 1.25."""


@dataclass(frozen=True)
class Cycle:
    """`rounds` R in all, of which every `period`-th, T, restarts, beginning with the first. `split`: v. `part`: of the
    budget that all of them have together."""

    rounds: int
    period: int
    split: float
    part: float = 1.0

    @property
    def restarts(self) -> int:
        """m_1 = ceil(R / T)."""
        return -(-self.rounds // self.period)

    @property
    def differences(self) -> int:
        """m_2."""
        return self.rounds - self.restarts
