"""The charges that a ledger has lost, bounded from above by its anchor in every measure that a filter sums.

For each measure the anchor has the sum of charges when it was written. A run that the ledger still has counts in that
sum with at most its present charge: closing lowers a charge. So the missing part of the sum is charged, and the new
sum is at least the anchor's. This holds for mu^2, epsilon and delta, each by itself, and for divergences at the
account's order if the anchor has their sum.

It does not hold for divergences derived from the missing mu^2. The mu^2 of a run of samples is far above its true cost.
So closing one can lower the sum of mu^2 by more than other runs were charged.
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
    """The missing part of known sums, each at least 0; an infinite sum is missing in full."""
    pairs = zip(known, here, strict=True)
    return Totals(*(there if there == math.inf else max(0.0, there - mine) for there, mine in pairs))


def lost_charge(known: Totals, at: float | None, charges: Iterable[Charge], order: float | None) -> Charge:
    """The charge to add to the remaining `charges` so that their sums reach the `known` ones.

    `at`: order of the known divergences; None: their sum is not known. `order`: the account's, None before its first
    cap. Where both differ, mu^2 of runs of samples is not subtracted.
    """
    remaining = list(charges)
    gone = _missing(known, Totals.of(remaining, order))
    if order is not None and at == order:
        return replace(gone.charge, divergence=Divergence(order, gone.rho))
    whole = _missing(known, Totals.of(charge for charge in remaining if not charge.samples)).mu_squared
    if order is None:
        return replace(gone.charge, mu_squared=whole)
    return replace(gone.charge, divergence=Divergence(order, renyi.full(order, whole)))


def of_order(lost: Charge, order: float | None) -> Charge:
    """A lost charge for an account of this order: of infinite divergence if it was derived at another order."""
    known = lost.divergence
    if order is None or known is None or known.order == order:
        return lost
    return replace(lost, divergence=Divergence(order, math.inf))


def repair_summary(runs: Sequence[str], lost: Charge) -> str:
    """A sentence about a reconciliation: the runs that it closed, and its charge."""
    added = [f"mu^2 {shown_up(lost.mu_squared, 6)}", f"epsilon {shown_up(lost.epsilon, 6)}"]
    added.append(f"delta {shown_up(lost.delta, 3)}")
    if (known := lost.divergence) is not None:
        added.append(f"divergence {shown_up(known.rho, 6)} of order {shown_up(known.order, 6)}")
    return f"closed in full: {', '.join(runs) or 'no run was open'}; charged as lost: {', '.join(added)}"
