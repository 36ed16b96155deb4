"""The charges that a ledger has lost, by its anchor: bounded from above in whatever a filter adds up.

Of each measure the anchor has the sum that was charged when it was written. A run that the ledger still has counts in
that sum at most as it counts now: closing lowers a charge. So what is missing of the sum is charged, and all of it
together is at least what the anchor saw. That holds for mu^2, epsilon and delta, each by itself, and for divergences
of the account's order where the anchor has their sum. It does not hold for divergences that are derived from what is
missing of mu^2: a run of samples has a mu^2 that is far above all that it can cost, and its closing lowers mu^2 by more
than others can be charged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from fedcore.accounting.divergences import renyi
from fedcore.accounting.filters import Charge, Divergence
from fedcore.directed_rounding import shown_up
from fedcore.ledger.anchor import Totals


def _missing(known: Totals, here: Totals) -> Totals:
    """The part that is missing of sums that are known: at least 0 each, and all of it where that is infinite."""
    pairs = zip(known, here, strict=True)
    return Totals(*(there if there == math.inf else max(0.0, there - mine) for there, mine in pairs))


def lost_charge(known: Totals, at: float | None, charges: Iterable[Charge], order: float | None) -> Charge:
    """The charge to be made beside `charges`, which are still there, for sums that are `known`.

    `at`: the order of the known divergences; None: there is no sum of them. `order`: the account's, None before its
    first cap. Where both differ, mu^2 of runs of samples is not taken off.
    """
    kept = list(charges)
    gone = _missing(known, Totals.of(kept, order))
    if order is not None and at == order:
        return replace(gone.charge, divergence=Divergence(order, gone.rho))
    whole = _missing(known, Totals.of(charge for charge in kept if not charge.samples)).mu_squared
    if order is None:
        return replace(gone.charge, mu_squared=whole)
    return replace(gone.charge, divergence=Divergence(order, renyi.full(order, whole)))


def of_order(lost: Charge, order: float | None) -> Charge:
    """A loss as an account of this order counts it: without bound, where it was derived at another one."""
    known = lost.divergence
    if order is None or known is None or known.order == order:
        return lost
    return replace(lost, divergence=Divergence(order, math.inf))


def repair_said(runs: Sequence[str], lost: Charge) -> str:
    """A sentence on a reconciliation: the runs that it closed, and its charge."""
    added = [f"mu^2 {shown_up(lost.mu_squared, 6)}", f"epsilon {shown_up(lost.epsilon, 6)}"]
    added.append(f"delta {shown_up(lost.delta, 3)}")
    if (known := lost.divergence) is not None:
        added.append(f"divergence {shown_up(known.rho, 6)} of order {shown_up(known.order, 6)}")
    return f"closed in full: {', '.join(runs) or 'no run was open'}; charged as lost: {', '.join(added)}"
