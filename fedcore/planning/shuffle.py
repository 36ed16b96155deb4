"""Public numbers of a shuffler, the process that permutes a round's messages before the server.

A message is hidden only among messages of the same form. Neighbours differ in one record of one silo. The checks here
refuse every other difference between silos that messages would show.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fedcore.accounting.calibration import Budget
from fedcore.directed_rounding import in_full, shown_down
from fedcore.errors import InputError
from fedcore.planning.evaluation import Evaluation
from fedcore.planning.participation import SilosPerRound

LONGEST_DEADLINE = 7 * 24 * 3600.0
"""Seconds that a shuffler may wait for the messages of a round."""


@dataclass(frozen=True)
class Shuffle:
    """`minimum`: least number of messages in a batch of one round that the shuffler forwards; at least 2."""

    minimum: int

    @classmethod
    def of(cls, minimum: int | None, participants: SilosPerRound) -> Shuffle:
        """A shuffler with this minimum; None: all that take part in a round.

        Raises InputError where their number is random.
        """
        return cls(_fixed(participants) if minimum is None else minimum)

    def check(
        self,
        sizes: Collection[int],
        participants: SilosPerRound,
        weights: Sequence[float] | None,
        evaluation: Evaluation | None,
    ) -> None:
        """Raises InputError unless silos of these sizes, this many in a round, can be shuffled."""
        most = _fixed(participants)
        if not 2 <= self.minimum <= most:
            raise InputError(
                f"shuffler.minimum = {self.minimum:g} must be from 2 to the {most:g} silos that answer in a "
                "round: one message is hidden by no other, and more than these never come"
            )
        if len(set(sizes)) > 1:
            raise InputError(
                f"privacy.trust = shuffler needs silos of equal size, and these have {min(sizes)} to {max(sizes)} "
                "records: a message's noise would reveal its silo"
            )
        if weights is not None and len(set(weights)) > 1:
            raise InputError(
                "privacy.trust = shuffler needs participation.weights = equal: the server cannot match a "
                "message to its silo's weight"
            )
        if evaluation is not None:
            raise InputError(
                "privacy.trust = shuffler has no evaluation of held-out records, which names the silo of each answer: "
                "leave evaluation out"
            )

    def check_delta(self, budget: Budget, sizes: Sequence[int]) -> None:
        """Raises InputError unless delta is below one over all silos' records, among which a batch hides one."""
        total = sum(sizes)
        if budget.private and not max(map(budget.delta, sizes)) < 1.0 / total:
            delta = "1/n^2" if budget.fixed_delta is None else in_full(budget.fixed_delta)
            raise InputError(
                f"privacy.delta = {delta} must be below 1/{total} with privacy.trust = shuffler, whose batches hide "
                f"one of all {total} records: give a number, for instance {shown_down(0.01 / total, 1)}"
            )


def _fixed(participants: SilosPerRound) -> int:
    if not isinstance(participants, int):
        raise InputError(
            "privacy.trust = shuffler needs a fixed number of silos in a round, not a law of it: give "
            "participation.silos_per_round a number"
        )
    return participants
