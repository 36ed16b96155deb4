"""Test that no cap admits runs that exceed it; part of the instrument `accounts`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from fedcore.accounting.filters import Cap, Charge, Rule
from fedcore.audit.accounts.cost import delta_at_least, gaussian, squared
from fedcore.audit.accounts.known_account import SLACK, KnownAccount, admits
from fedcore.audit.audited_silo import AuditedSilo
from fedcore.directed_rounding import shown_up
from fedcore.ledger.ledger import Ledger
from fedcore.ledger.memory import MemoryLedger
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.silo.approval import charge_of

MANY, MOST = 4, 64
"""Epsilons of one run that a cap has room for, and more runs than fit: about the square of the first."""


def capped(known: KnownAccount, _: np.random.Generator, folder: Path) -> None:
    """Checks that no cap admits two runs that each take it whole, also after one is closed unspent.

    No ledger and no rule may do so.
    With the plan's own charge, no rule admits more runs than a cap allows for runs that were fixed beforehand.
    """
    audited = known.audited
    most = _most_squared(1.0, audited.delta)
    for rule, ledger in _ledgers(audited, folder):
        with closing(ledger):
            charge = Charge(squared(known.planned), audited.plan.silo_epsilon(audited.silo), audited.delta)
            cap = Cap(charge.epsilon, charge.delta, rule)
            admitted = [run for run in ("one", "two") if admits(ledger, run, charge, cap)]
            known.holds(f"a cap ({rule}) of one run admits {len(admitted)}", len(admitted) < 2)
            if admitted:
                ledger.close_run(admitted[0], 0.75 * charge.mu_squared)
                known.holds(
                    f"a cap ({rule}) of one run admits one more than {admitted[0]}, of which three fourths are spent",
                    not admits(ledger, "three", charge, cap),
                )
    for rule, ledger in _ledgers(audited, folder / "parts"):
        with closing(ledger):
            cap = Cap(1.0, audited.delta, rule)
            parts = [Charge(part * most, part, audited.delta / 2.0) for part in (0.9, 0.11)]
            both = [admits(ledger, f"part-{at}", part, cap) for at, part in enumerate(parts)]
            known.holds(f"a cap ({rule}) of epsilon 1 admits what takes 1.01 of it", not all(both))
    for rule, ledger in _ledgers(audited, folder / "deltas"):
        with closing(ledger):
            cap = Cap(8.0, audited.delta, rule)
            both = [admits(ledger, f"delta-{at}", Charge(0.01 * most, 0.1, 0.6 * cap.delta), cap) for at in range(2)]
            # The other rules bound one curve of epsilon over delta, along which charges add up.
            known.holds(f"a cap ({rule}) admits 1.2 of its delta", rule != "basic" or not all(both))

    charge = charge_of(audited.silo, audited.plan)
    cap = Cap(MANY * charge.epsilon, charge.delta, "rdp")
    for rule in get_args(Rule):
        ledger, count, mine = MemoryLedger(audited.silo), 0, replace(cap, rule=rule)
        while count < MOST and admits(ledger, f"run-{count}", charge, mine):
            count += 1
        enough = delta_at_least(known.planned * count, cap.epsilon) <= cap.delta * SLACK
        known.holds(f"a cap ({rule}) of epsilon {shown_up(cap.epsilon)} admits {count} runs", count < MOST and enough)


def _most_squared(epsilon: float, delta: float) -> float:
    """The largest squared parameter of (epsilon, delta)-private Gaussian answers, up to rounding."""
    low, high = 0.0, 1.0
    while gaussian(high, epsilon) < delta:
        low, high = high, 2.0 * high
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if gaussian(middle, epsilon) < delta else (low, middle)
    return high


def _ledgers(audited: AuditedSilo, folder: Path) -> Iterator[tuple[Any, Ledger]]:
    made: list[Callable[[str], Ledger]] = [
        MemoryLedger,
        lambda rule: SqliteLedger(audited.silo, folder / rule / "a.sqlite", folder / rule / "a.anchor"),
    ]
    for rule in ("gdp", "rdp", "basic"):
        (folder / rule).mkdir(parents=True)
        for make in made:
            yield rule, make(rule)
