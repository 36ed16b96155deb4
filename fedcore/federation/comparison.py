"""Comparison of ledgers with the plan and with the releases that the driver received."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from fedcore.directed_rounding import in_full
from fedcore.errors import ShufflerError, SiloError
from fedcore.planning.plan import Plan
from fedcore.silo.account import SiloAccount


def compare(
    plan: Plan, received: Mapping[str, int], accounts: Iterable[SiloAccount], asked: Mapping[str, int] | None = None
) -> None:
    """Checks each ledger: as many releases as received, and an epsilon within the plan's. Raises SiloError otherwise.

    `received`: number of releases by silo. `asked`: number of questions, where silos were skipped: a skipped silo may
    have released an answer that was not counted.
    """
    # The PLD accountant for subsampled Gaussians errs upwards by at most 0.2 %, differently for each number of answers.
    slack = 1e-9 if all(kind.rate == 1 for phase in plan.phases for kind in phase.kinds) else 3e-3
    for account in accounts:
        planned = plan.silo_epsilon(account.silo)
        least = received.get(account.silo, 0)
        most = least if asked is None else asked.get(account.silo, 0)
        if not least <= account.releases <= most or account.epsilon > planned * (1 + slack):
            raise SiloError(
                account.silo,
                "plan",
                f"its ledger shows {account.releases} releases and epsilon {in_full(account.epsilon)}, the driver "
                f"received {least} and planned for epsilon {in_full(planned)}",
            )


def with_missing(plan: Plan, received: Mapping[str, int], accounts: Sequence[SiloAccount]) -> list[SiloAccount]:
    """The accounts, one per silo in the plan's order. One that did not come spends all that the plan charges."""
    found = {account.silo: account for account in accounts}
    full = {
        silo.name: SiloAccount(
            silo.name,
            silo.n,
            received.get(silo.name, 0),
            plan.silo_epsilon(silo.name),
            plan.problem.budget.delta(silo.n),
            0,
            False,
        )
        for silo in plan.problem.silos
        if silo.name not in found
    }
    return [found.get(silo.name) or full[silo.name] for silo in plan.problem.silos]


def compare_shuffled(
    plan: Plan, questions: Iterable[tuple[str, int, int]], received: int, accounts: Sequence[SiloAccount]
) -> None:
    """Checks a shuffled run's ledgers against its questions and `received` messages.

    `questions`: (silo, phase, round) of each. A silo has at most as many releases as questions; all silos together have
    at least `received`, since messages have no sender. Raises SiloError or ShufflerError otherwise.
    """
    counts = Counter(silo for silo, _, _ in questions)
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
    if received > released:
        sentence = f"{received} messages came in its batches, and ledgers show {released} releases: others sent some"
        raise ShufflerError("answer", sentence)
