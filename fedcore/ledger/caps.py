"""The caps that an account has had: the order of its Renyi filter (set by the first cap) and the claimed cap.

A change of caps is recorded with the next approval. So a cap that admitted no run implies nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, get_args

from fedcore.accounting.divergences import renyi
from fedcore.accounting.filters import Cap, Charge, Rule


class Recorded(NamedTuple):
    """The caps in force from entry number `entry` on, each of which must admit a run; () for none."""

    entry: int
    caps: tuple[Cap, ...]


class Caps:
    """All caps of an account, from verified entries in order. `order`: None before the first cap."""

    def __init__(self) -> None:
        self.order: float | None = None
        self.recorded: list[Recorded] = []

    def take(self, entry: int, body: dict[str, Any]) -> None:
        """Adds the next entry. Raises ValueError, TypeError or KeyError for an invalid one, such as another order."""
        order = body["order"]
        renyi.check_order(order)
        if self.order not in (None, order):
            raise ValueError(f"an account of order {self.order} has no order {order}")
        caps = tuple(Cap(each["epsilon"], each["delta"], each["rule"]) for each in body["caps"])
        if type(late := body.get("late", False)) is not bool:
            raise ValueError(f"caps are late or not, and not {late!r}")
        self.order = order
        if late:
            self.recorded.append(Recorded(entry, ()))
        self.recorded.append(Recorded(entry, caps))

    def under(self, caps: Sequence[Cap]) -> float | None:
        """The order at which a run under these caps is charged; None: there is no cap, and never was."""
        return self.order if self.order is not None or not caps else caps[0].order

    def change(self, caps: Sequence[Cap], runs: int) -> dict[str, Any] | None:
        """Body of the entry to record with an approval under these caps; None if they are unchanged.

        `runs`: number of runs approved before. A first cap that comes after some (`late`) may have been chosen from
        their answers, so nothing is claimed by it.
        """
        before = self.recorded[-1].caps if self.recorded else ()
        order = self.under(caps)
        if order is None or (tuple(caps) == before and self.recorded):
            return None
        return caps_json(order, caps) | ({"late": True} if runs and not self.recorded else {})

    def again(self, order: float | None, claimed: Cap | None) -> dict[str, Any] | None:
        """Body of the entry that restores the `order` and `claimed` of an anchor; None if no entry of caps was lost.

        The order and the claim are for life, whatever was lost. A ledger of another order than the anchor's belongs to
        a register, which records both.
        """
        if order is None or self.order not in (None, order) or (self.order, self.claimed) == (order, claimed):
            return None
        return caps_json(order, [] if claimed is None else [claimed])

    @property
    def claimed(self) -> Cap | None:
        """The largest cap ever in force, by its rule; of several in force at a time the smallest counts.

        For rule `basic`: the largest epsilon and the largest delta. None where nothing is claimed: no cap, a run that
        was approved without one, or no rule that was in force all the time.
        """
        if self.order is None:
            return None
        found = (self._largest(rule, self.order) for rule in get_args(Rule))
        return next((cap for cap in found if cap is not None), None)

    def _largest(self, rule: Rule, order: float) -> Cap | None:
        """The cap of one rule under which all charges always stayed; None if the rule was not always in force."""
        listed = [[cap for cap in each.caps if cap.rule == rule] for each in self.recorded]
        if not listed or not all(listed):
            return None
        smallest = [min(caps, key=lambda cap: cap.capacity(order)) for caps in listed]
        if rule == "basic":
            return Cap(max(cap.epsilon for cap in smallest), max(cap.delta for cap in smallest), rule)
        return max(smallest, key=lambda cap: cap.capacity(order))


def caps_json(order: float, caps: Sequence[Cap]) -> dict[str, Any]:
    """Body of an entry of kind `cap`: the account's order, and the caps in force from here on."""
    listed = [{"epsilon": cap.epsilon, "delta": cap.delta, "rule": cap.rule} for cap in caps]
    return {"order": order, "caps": listed, "formula": renyi.FORMULA}


def caps_shown(caps: Caps, sums: Sequence[Sequence[Charge]]) -> dict[str, Any] | None:
    """An account's caps as plain values; None before the first cap under which a run was approved.

    `sums`: for each version of the data, the charges that add up. The version with the largest sum decides what is
    spent, and the one with the least left what is left.

    `order`: of the account's Renyi filter, for life. `divergence`: of all charges at that order; None if infinite.
    `recorded`: the caps in force from an entry on, each of which had to admit a run. `claimed`: as `Caps.claimed`.
    `in_force`: the caps recorded last. `spent`: epsilon by the cap's rule at its delta (None: infinite). `left`:
    epsilon for one more run of full batches. `room`: divergence that the cap leaves by rule rdp.
    """
    order = caps.order
    if order is None:
        return None
    total = max((math.fsum(charge.rho(order) for charge in charges) for charges in sums), default=0.0)
    in_force = []
    for cap in caps.recorded[-1].caps:
        spent = max((cap.spent(charges, order) for charges in sums), default=0.0)
        left = min((cap.left(charges, order) for charges in sums), default=cap.left([], order))
        room = max(0.0, cap.room(order) - total)
        shown = {"spent": spent if spent < math.inf else None, "left": left, "room": room}
        in_force.append(asdict(cap) | shown)
    return {
        "order": order,
        "divergence": total if total < math.inf else None,
        "recorded": [{"entry": each.entry, "caps": [asdict(cap) for cap in each.caps]} for each in caps.recorded],
        "claimed": None if caps.claimed is None else asdict(caps.claimed),
        "in_force": in_force,
    }
