"""Size of a run, from its plan alone, and the size above which a command asks for confirmation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the bounds are in the help of commands, which loads neither NumPy nor SciPy
    from fedcore.planning.plan import Plan
MOST_ROUNDS = 1_000_000
"""Rounds of all runs of a command above which it asks for confirmation."""
MOST_LEDGER_BYTES = 10 * 10**9
"""Bytes of all durable ledgers above which a command asks for confirmation."""
RELEASE_BYTES = 400
"""Bytes of a release in a durable ledger beside its numbers: entry, chain and index, as measured."""
ROUND_BYTES, RECEIPT_BYTES = 6_500, 160
"""Bytes of a round in the checkpoint and in MLflow, and of each of its receipts in the checkpoint, as measured."""

_UNITS = ("bytes", "KB", "MB", "GB", "TB", "PB", "EB")


@dataclass(frozen=True)
class Size:
    """Size of one or several runs; sizes add.

    `rounds`; numbers that silos send and receive, expected; releases; bytes of durable ledgers; bytes of the runs'
    files.
    """

    rounds: int = 0
    floats_up: float = 0.0
    floats_down: float = 0.0
    releases: float = 0.0
    ledger_bytes: float = 0.0
    file_bytes: float = 0.0

    @classmethod
    def of(cls, plan: Plan, durable: bool) -> Size:
        """Size of a run of this plan. `durable`: ledgers are files."""
        from fedcore.arrays import FLOAT_BYTES

        participants = plan.problem.participation.expected
        floats = [phase.floats(participants, plan.problem.objective.dim) for phase in plan.phases]
        up, down = sum(up for up, _ in floats), sum(down for _, down in floats)
        releases = sum(phase.turns(participants) for phase in plan.phases)
        ledgers = RELEASE_BYTES * releases + FLOAT_BYTES * up if durable else 0.0
        files = ROUND_BYTES * plan.rounds + RECEIPT_BYTES * releases
        return cls(plan.rounds, up, down, releases, ledgers, files)

    def __add__(self, other: Size) -> Size:
        return Size(
            self.rounds + other.rounds,
            self.floats_up + other.floats_up,
            self.floats_down + other.floats_down,
            self.releases + other.releases,
            self.ledger_bytes + other.ledger_bytes,
            self.file_bytes + other.file_bytes,
        )

    @property
    def large(self) -> bool:
        """True if a command asks for confirmation before it starts runs of this size."""
        return self.rounds > MOST_ROUNDS or self.ledger_bytes > MOST_LEDGER_BYTES

    @property
    def words(self) -> str:
        from fedcore.arrays import FLOAT_BYTES

        moved = _bytes(FLOAT_BYTES * (self.floats_up + self.floats_down))
        ledgers = f"{_bytes(self.ledger_bytes)} of ledgers" if self.ledger_bytes else "ledgers in memory"
        return (
            f"{self.rounds:,} rounds, {self.floats_up:.3g} numbers sent by silos and {self.floats_down:.3g} received "
            f"({moved}), {self.releases:,.0f} releases, {ledgers} and about {_bytes(self.file_bytes)} of other files"
        )


def _bytes(count: float) -> str:
    unit = 0
    while count >= 1000 and unit < len(_UNITS) - 1:
        count, unit = count / 1000, unit + 1
    return f"{count:.3g} {_UNITS[unit]}"
