"""The account of one run at a silo, from its ledger; its site returns it to the driver at the end."""

from __future__ import annotations

from typing import NamedTuple

from fedcore.accounting.composition import spent
from fedcore.planning.plan import Plan
from fedcore.silo.private_silo import PrivateSilo


class SiloAccount(NamedTuple):
    """One run at a silo: number of releases, the epsilon they spend at its delta, and answers computed.

    `disjoint`: the operator has declared that other data versions hold other persons; those do not count.
    """

    silo: str
    n: int
    releases: int
    epsilon: float
    delta: float
    computed: int
    disjoint: bool


def account(silo: PrivateSilo, plan: Plan, run: str) -> SiloAccount:
    """The account of an approved run, from the events in the silo's ledger."""
    events = silo.ledger.events(run)
    delta = plan.problem.budget.delta(silo.n)
    epsilon = spent(events, delta)
    return SiloAccount(silo.name, silo.n, len(events), epsilon, delta, silo.computed, silo.ledger.disjoint)
