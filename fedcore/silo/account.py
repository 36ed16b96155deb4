"""What a silo's ledger says of one run, as its site tells the driver at the end."""

from __future__ import annotations

from typing import NamedTuple

from fedcore.accounting.composition import spent
from fedcore.planning.plan import Plan
from fedcore.silo.private_silo import PrivateSilo


class SiloAccount(NamedTuple):
    """One run by a silo's ledger: releases, the epsilon they spend at its delta, and answers computed.

    `disjoint`: whether its operator has declared that other data versions have other persons; those do not count.
    """

    silo: str
    n: int
    releases: int
    epsilon: float
    delta: float
    computed: int
    disjoint: bool


def account(silo: PrivateSilo, plan: Plan, run: str) -> SiloAccount:
    """Of an approved run and its plan, from the events in the silo's ledger."""
    events = silo.ledger.events(run)
    delta = plan.problem.budget.delta(silo.n)
    epsilon = spent(events, delta)
    return SiloAccount(silo.name, silo.n, len(events), epsilon, delta, silo.computed, silo.ledger.disjoint)
