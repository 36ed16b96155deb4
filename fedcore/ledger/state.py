"""What verified entries say is in force: kept in memory, so that a ledger's file is only where it is stored."""

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
    """An approved run: where its entry is, digest of its plan, and SHA-256 of its key in hexadecimal digits."""

    link: Link
    plan: str
    key_sha256: str


class LedgerState:
    """All entries that are no releases, and what follows from them. They must have been verified."""

    def __init__(self, entries: Iterable[tuple[Entry, bytes]] = ()) -> None:
        self.entries: list[Entry] = []
        self.trail = GENESIS
        """SHA-256 chained over their MACs: which they are, and in which order."""
        self.lost_runs = 0
        """Runs that were approved, and whose approvals were lost before a reconciliation."""
        self._runs: dict[str, Charge] = {}
        self._lost: list[Charge] = []
        self._reconciled: list[Link] = []
        self.approvals: dict[str, Approval] = {}
        self.closings: dict[str, Link] = {}
        self.leases: dict[str, int] = {}
        """Of runs that have one, the number of the newest."""
        self.caps = Caps()
        self.person: str | None = None
        """The column of the persons that charges are for; None: records. One for all, as the first approval says."""
        for entry, mac in entries:
            self.take(entry, mac)

    def take(self, entry: Entry, mac: bytes) -> None:
        """Adds the next entry. Raises ValueError, TypeError or KeyError if it is none that this code writes."""
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

        What reconciliations add comes last, under names `reconciliation N` that no run has: whoever asks names runs.
        """
        free = (name for number in count(1) if (name := f"reconciliation {number}") not in self._runs)
        return self._runs | dict(zip(free, self._lost, strict=False))

    @property
    def losses(self) -> list[tuple[Link, Charge]]:
        """Where reconciliations are, and what each of them has charged."""
        return list(zip(self._reconciled, self._lost, strict=True))

    @property
    def runs(self) -> int:
        """How many runs were ever approved, with those that were lost."""
        return len(self.approvals) + self.lost_runs

    def is_open(self, run: str) -> bool:
        """Whether the run was approved and not ended."""
        return run in self.approvals and run not in self.closings

    @property
    def open_runs(self) -> list[str]:
        """The runs that are open, by name."""
        return sorted(self.approvals.keys() - self.closings.keys())
