"""The caps that an account has had: the order of its Renyi filter, which the first one implied, and what is claimed.

Caps are kept with the approval under which they changed. So a cap that admitted nothing implies nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, get_args

from fedcore.accounting.divergences import renyi
from fedcore.accounting.filters import Cap, Charge, Rule


class Recorded(NamedTuple):
    """The caps that were in force from an entry of this number on, each of which must admit a run; () for none."""

    entry: int
    caps: tuple[Cap, ...]


class Caps:
    """All of them, from verified entries in order. `order`: None before the first cap."""

    def __init__(self) -> None:
        self.order: float | None = None
        self.recorded: list[Recorded] = []

    def take(self, entry: int, body: dict[str, Any]) -> None:
        """Adds the next entry. Raises ValueError, TypeError or KeyError for one that no account has: another order."""
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
        """The order at which a run that these caps have to admit is charged; None: there is no cap, and never was."""
        return self.order if self.order is not None or not caps else caps[0].order

    def change(self, caps: Sequence[Cap], runs: int) -> dict[str, Any] | None:
        """What is to be kept with an approval under these caps; None where they are those of before.

        `runs`: that were approved before. A first cap that comes after some was perhaps chosen by their answers:
        nothing is claimed by it.
        """
        before = self.recorded[-1].caps if self.recorded else ()
        order = self.under(caps)
        if order is None or (tuple(caps) == before and self.recorded):
            return None
        return caps_json(order, caps) | ({"late": True} if runs and not self.recorded else {})

    def again(self, order: float | None, claimed: Cap | None) -> dict[str, Any] | None:
        """What is to be kept where these caps have lost what an anchor knows of them; None where they have not.

        The order is for life, whatever was lost; of the caps, the claim is. A ledger whose own order is another one
        goes on in a register, which keeps both.
        """
        if order is None or self.order not in (None, order) or (self.order, self.claimed) == (order, claimed):
            return None
        return caps_json(order, [] if claimed is None else [claimed])

    @property
    def claimed(self) -> Cap | None:
        """The largest cap ever in force, as its rule counts; of several at a time the smallest counts.

        None where nothing is claimed: without a cap, where a run was approved without one, before or since, or where
        no rule was in force all the time. Of rules `basic` the largest epsilon and delta.
        """
        if self.order is None:
            return None
        found = (self._largest(rule, self.order) for rule in get_args(Rule))
        return next((cap for cap in found if cap is not None), None)

    def _largest(self, rule: Rule, order: float) -> Cap | None:
        """Of one rule, under which all charges stayed at all times; None where it was not always in force."""
        listed = [[cap for cap in each.caps if cap.rule == rule] for each in self.recorded]
        if not listed or not all(listed):
            return None
        smallest = [min(caps, key=lambda cap: cap.capacity(order)) for caps in listed]
        if rule == "basic":
            return Cap(max(cap.epsilon for cap in smallest), max(cap.delta for cap in smallest), rule)
        return max(smallest, key=lambda cap: cap.capacity(order))


def caps_json(order: float, caps: Sequence[Cap]) -> dict[str, Any]:
    """The body of an entry: the account's order, and the caps in force from here on."""
    listed = [{"epsilon": cap.epsilon, "delta": cap.delta, "rule": cap.rule} for cap in caps]
    return {"order": order, "caps": listed, "formula": renyi.FORMULA}


def caps_shown(caps: Caps, sums: Sequence[Sequence[Charge]]) -> dict[str, Any] | None:
    """The caps that an account has had, as plain values; None before the first one under which a run was approved.

    `sums`: charges that add up, for each version of the data; of all of them what is spent is the most, what is left
    the least. `order`: of its Renyi filter, for life. `divergence`: what all charges come to at it; None where that is
    infinite. `recorded`: the caps in force from an entry on, each of which had to admit a run. `claimed`: as
    `Caps.claimed`. `in_force`: those that were recorded last, each with the epsilon `spent` by its rule at its delta
    (None: infinite), the epsilon `left` for one more run of full batches, and the `room` that it leaves for divergences
    by rule rdp.
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
