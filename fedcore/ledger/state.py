"""In-memory state of a ledger (open runs, charges, caps), rebuilt from its verified entries."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

from fedcore.accounting.filters import Charge
from fedcore.ledger.anchor import GENESIS
from fedcore.ledger.caps import Caps
from fedcore.ledger.chain import Entry, charge_of


class Link(NamedTuple):
    """A place in a chain: number and MAC of an entry."""

    sequence: int
    mac: bytes


class Approval(NamedTuple):
    """An approved run: link of its entry, digest of its plan, and SHA-256 (hex) of its key."""

    link: Link
    plan: str
    key_sha256: str


class LedgerState:
    """All verified entries other than releases, and the state that follows from them."""

    def __init__(self, entries: Iterable[tuple[Entry, bytes]] = ()) -> None:
        self.entries: list[Entry] = []
        self.trail = GENESIS
        """SHA-256 chained over their MACs, which fixes the entries and their order."""
        self.lost_runs = 0
        """Number of runs whose approvals were lost before a reconciliation."""
        self._runs: dict[str, Charge] = {}
        self._lost: list[Charge] = []
        self._reconciled: list[Link] = []
        self.approvals: dict[str, Approval] = {}
        self.closings: dict[str, Link] = {}
        self.leases: dict[str, int] = {}
        """Number of the newest lease of each run that has one."""
        self.caps = Caps()
        self.person: str | None = None
        """The column of persons that all charges are for, set by the first approval; None: records."""
        for entry, mac in entries:
            self.take(entry, mac)

    def take(self, entry: Entry, mac: bytes) -> None:
        """Adds the next entry. Raises ValueError, TypeError or KeyError for one that this code does not write."""
        link = Link(entry.sequence, mac)
        if entry.kind == "approval":
            body = json.loads(entry.body)
            if not self.approvals:
                self.person = body.get("person")
            self.approvals[entry.run] = Approval(link, str(body["plan"]), str(body["key_sha256"]))
            self._runs[entry.run] = charge_of(body)
        elif entry.kind == "closing":
            self._runs[entry.run] = charge_of(json.loads(entry.body))
            self.closings[entry.run] = link
        elif entry.kind == "lease":
            self.leases[entry.run] = int(json.loads(entry.body)["lease"])
        elif entry.kind == "cap":
            self.caps.take(entry.sequence, json.loads(entry.body))
        elif entry.kind == "reconciliation":
            body = json.loads(entry.body)
            self._lost.append(charge_of(body))
            self._reconciled.append(link)
            self.lost_runs += int(body.get("runs", 0))
        self.entries.append(entry)
        self.trail = hashlib.sha256(self.trail + mac).digest()

    @property
    def charges(self) -> dict[str, Charge]:
        """The charge in force of every run, in order of approval; a closing replaces an approval.

        Charges of reconciliations come last, under names `reconciliation N` that no run has.
        """
        free = (name for number in count(1) if (name := f"reconciliation {number}") not in self._runs)
        return self._runs | dict(zip(free, self._lost, strict=False))

    @property
    def losses(self) -> list[tuple[Link, Charge]]:
        """Link and charge of each reconciliation."""
        return list(zip(self._reconciled, self._lost, strict=True))

    @property
    def runs(self) -> int:
        """Number of runs ever approved, with those that were lost."""
        return len(self.approvals) + self.lost_runs

    def is_open(self, run: str) -> bool:
        """True if the run was approved and not closed."""
        return run in self.approvals and run not in self.closings

    @property
    def open_runs(self) -> list[str]:
        """Ids of the open runs, sorted."""
        return sorted(self.approvals.keys() - self.closings.keys())
