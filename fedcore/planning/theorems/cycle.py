"""Cycle of DIFF2: rounds between restarts, and the budget's split between restarts and differences."""

from __future__ import annotations

from dataclasses import dataclass

PAPER_SPLIT = 0.8
"""1 / u of the experiments of Murata and Suzuki 2023, u = 1.25."""


@dataclass(frozen=True)
class Cycle:
    """R `rounds`, of which every `period`-th, T, is a restart, beginning with the first.

    `split`: v. `part`: of the budget, for restarts and differences together.
    """

    rounds: int
    period: int
    split: float
    part: float = 1.0

    @property
    def restarts(self) -> int:
        """m_1 = ceil(R / T), the number of restarts."""
        return -(-self.rounds // self.period)

    @property
    def differences(self) -> int:
        """m_2 = R - m_1, the number of rounds about differences."""
        return self.rounds - self.restarts
