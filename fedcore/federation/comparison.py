"""What silos released in a run, by their ledgers, held against what was planned and what came to the driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from fedcore.directed_rounding import in_full
from fedcore.errors import ShufflerError, SiloError
from fedcore.planning.plan import Plan
from fedcore.silo.account import SiloAccount


def compare(plan: Plan, answered: Iterable[str], accounts: Iterable[SiloAccount]) -> None:
    """What was released must be what was planned and received. Raises SiloError otherwise.

    `answered`: the silo of each release that was received.
    """
    # The PLD accountant for subsampled Gaussians says 0.2 % too much at most, not the same for each number of answers.
    slack = 1e-9 if all(kind.rate == 1 for phase in plan.phases for kind in phase.kinds) else 3e-3
    expected = {silo.name: 0 for silo in plan.problem.silos}
    for silo in answered:
        expected[silo] += 1
    for account in accounts:
        planned = plan.silo_epsilon(account.silo)
        if account.releases != expected[account.silo] or account.epsilon > planned * (1 + slack):
            raise SiloError(
                account.silo,
                "plan",
                f"its ledger shows {account.releases} releases and epsilon {in_full(account.epsilon)}, the driver "
                f"received {expected[account.silo]} and planned for epsilon {in_full(planned)}",
            )


def compare_shuffled(
    plan: Plan, asked: Iterable[tuple[str, int, int]], came: int, accounts: Sequence[SiloAccount]
) -> None:
    """What silos released must be what they were asked, at most, and at least what came in batches.

    `asked`: (silo, phase, round); whose messages came nobody here knows. Raises SiloError or ShufflerError otherwise.
    """
    counts = Counter(silo for silo, _, _ in asked)
    for account in accounts:
        planned = plan.silo_epsilon(account.silo)
        if account.releases > counts[account.silo] or account.epsilon > planned * (1 + 1e-9):
            raise SiloError(
                account.silo,
                "plan",
                f"its ledger shows {account.releases} releases and epsilon {in_full(account.epsilon)}, the driver "
                f"asked for {counts[account.silo]} and planned for epsilon {in_full(planned)}",
            )
    released = sum(account.releases for account in accounts)
    if came > released:
        sentence = f"{came} messages came in its batches, and ledgers show {released} releases: others sent some"
        raise ShufflerError("answer", sentence)
