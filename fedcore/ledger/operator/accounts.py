"""What verified entries of the register say: an account for each silo, over all versions of its data.

Two versions share the account unless the operator declared, when the later one was registered, that its persons are in
no earlier one. What counts for a run on a version is what was charged on it and on all versions that share with it: at
least what any one person has been charged.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from fedcore.accounting.filters import Charge
from fedcore.ledger.anchor import Mark, Totals
from fedcore.ledger.caps import Caps
from fedcore.ledger.state import Link

DAY = timedelta(days=1)
KINDS = (
    "silo",
    "version",
    "records",
    "moved",
    "taken",
    "reserved",
    "confirmed",
    "cancelled",
    "settled",
    "lost",
    "given up",
    "head",
    "seen",
    "clock",
    "cap",
)


class RegisterEntry(NamedTuple):
    """One entry of the register but for its MAC. `body` is JSON; `version` is empty where it is about the silo."""

    sequence: int
    kind: str
    silo: str
    version: str
    body: str


@dataclass
class Reserved:
    """A run's charge. `state`: reserved (its ledger may not have it yet: no answer was given), open, closed, or lost
    (its ledger had it, and has it no more)."""

    charge: Charge
    plan: str
    state: str
    person: str | None = None


@dataclass
class Version:
    """A version of a silo's data: its ledger, anchor and the digest of the ledger's key, and all that was charged.

    `digests`: (content, records) of its records, the last ones last; `records`: how many there are. `lost`: what
    reconciliations charged beyond runs that are known by name; `reconciled`: the ledger's entries of these. `head`: an
    entry that its ledger has. `given_up`: the ledger is gone, and its charges stay.
    """

    name: str
    ledger: str
    anchor: str
    key: str
    records: int
    disjoint: bool
    digests: list[tuple[str, str]] = field(default_factory=list)
    runs: dict[str, Reserved] = field(default_factory=dict)
    lost: list[Charge] = field(default_factory=list)
    reconciled: set[Link] = field(default_factory=set)
    lost_runs: int = 0
    head: Link | None = None
    given_up: bool = False

    @property
    def charges(self) -> list[Charge]:
        return [*(run.charge for run in self.runs.values()), *self.lost]

    @property
    def count(self) -> int:
        """How many runs were approved, with those that were lost."""
        return len(self.runs) + self.lost_runs

    def behind(self, mark: Mark) -> bool:
        """Whether the ledger's anchor has seen more than this says."""
        known = Totals.of(self.charges)
        # Divergences follow from the same charges; their order may be the ledger's own, of before it was registered.
        more = any(not there <= here * (1 + 1e-12) for there, here in zip(mark.totals[:3], known[:3], strict=True))
        return more or mark.runs > self.count


@dataclass
class Account:
    """A silo's account. `latest`: the latest time on its clock that is kept; `ahead`: one more than a day after that,
    which nobody has confirmed; `said`: what its operator declared, as (number of the entry, sentence); `caps`: those
    that it has had, for whatever version, with the one order of its Renyi filter."""

    silo: str
    latest: datetime
    ahead: datetime | None = None
    versions: dict[str, Version] = field(default_factory=dict)
    said: list[tuple[int, str]] = field(default_factory=list)
    caps: Caps = field(default_factory=Caps)

    def sharing(self, version: str) -> Iterator[Version]:
        """The versions that share the account with `version`, itself included."""
        order = list(self.versions)
        at = order.index(version)
        for place, other in enumerate(self.versions.values()):
            if place == at or not self.versions[order[max(place, at)]].disjoint:
                yield other

    def person(self, version: str) -> tuple[str | None] | None:
        """What the charges are for that count for `version`, in brackets; None where there are none."""
        runs = [run for other in self.sharing(version) for run in other.runs.values()]
        return (runs[0].person,) if runs else None

    def see(self, moment: datetime) -> None:
        """Takes a reading of the silo's clock."""
        if moment <= self.latest:
            return
        if moment <= self.latest + DAY:
            self.latest = moment
        elif self.ahead is None or moment > self.ahead:
            self.ahead = moment


class Accounts:
    """All accounts, from entries in order; they must have been verified."""

    def __init__(self) -> None:
        self.by_name: dict[str, Account] = {}

    def find(self, silo: str) -> Account | None:
        """The account of this name, also where only capitals or the encoding of letters differ: files are found so."""
        return self.by_name.get(folded(silo))

    def of_records(self, content: str | None, records: str | None = None) -> tuple[Account, Version] | None:
        """Whose records these are, by either of their digests."""
        for account in self.by_name.values():
            for version in account.versions.values():
                if any(content == found[0] or records == found[1] for found in version.digests):
                    return account, version
        return None

    def why_not(self, silo: str, version: str, held: tuple[Account, Version] | None) -> str | None:
        """Why records are no `version` of `silo`, if `held` is whose they are by their digests; None if they may be."""
        account = self.find(silo)
        if account is not None and account.silo != silo:
            return f"silo {account.silo} has an account, and files of both names may be one"
        if held is not None and held[0] is not account:
            return f"its records are those of silo {held[0].silo}, which has their account"
        if held is not None and held[1].name != version:
            return (
                f"its records are those of data version {held[1].name[:12]}, whose ledger is {held[1].ledger}; open "
                "them as that version, they get no second account"
            )
        return None

    def take(self, entry: RegisterEntry) -> None:
        """Adds the next entry. Raises ValueError, TypeError, KeyError or AttributeError if this code writes no such."""
        body = json.loads(entry.body)
        if entry.kind == "silo":
            if folded(entry.silo) in self.by_name:
                raise ValueError("a silo is registered twice")
            self.by_name[folded(entry.silo)] = Account(entry.silo, datetime.fromisoformat(body["at"]))
            return
        account = self.by_name[folded(entry.silo)]
        if entry.kind == "clock":
            was, account.latest, account.ahead = account.latest, datetime.fromisoformat(body["to"]), None
            said = f"its clock was set from {said_time(was)} to {said_time(account.latest)} by its operator"
            account.said.append((entry.sequence, said))
        elif entry.kind == "seen":
            account.see(datetime.fromisoformat(body["at"]))
        elif entry.kind == "cap":
            account.caps.take(entry.sequence, body)
        elif entry.kind == "version":
            if entry.version in account.versions:
                raise ValueError("a version is registered twice")
            version = Version(
                entry.version, body["ledger"], body["anchor"], body["key"], int(body["records"]), bool(body["disjoint"])
            )
            if body["digests"] is not None:
                version.digests.append((str(body["digests"][0]), str(body["digests"][1])))
            account.versions[entry.version] = version
            if version.disjoint:
                said = f"persons of data version {entry.version[:12]} are declared to be in no earlier version"
                account.said.append((entry.sequence, said))
        else:
            self._of_version(account, account.versions[entry.version], entry, body)

    def _of_version(self, account: Account, version: Version, entry: RegisterEntry, body: dict[str, Any]) -> None:
        if entry.kind == "records":
            version.digests.append((str(body["digests"][0]), str(body["digests"][1])))
            version.records = int(body["records"])
        elif entry.kind == "moved":
            version.ledger, version.anchor = str(body["ledger"]), str(body["anchor"])
        elif entry.kind in ("reserved", "taken"):
            if body["run"] in version.runs:
                raise ValueError("a run is reserved twice")
            state = "reserved" if entry.kind == "reserved" else "closed" if body["closed"] else "open"
            charge = Charge.from_json(body["charge"])
            version.runs[body["run"]] = Reserved(charge, str(body["plan"]), state, body["person"])
            if entry.kind == "reserved":
                account.see(datetime.fromisoformat(body["at"]))
        elif entry.kind == "cancelled":
            if version.runs[body["run"]].state != "reserved":
                raise ValueError("a run that may have been answered is cancelled")
            del version.runs[body["run"]]
        elif entry.kind == "confirmed":
            version.runs[body["run"]].state = "open"
        elif entry.kind == "settled":
            run = version.runs[body["run"]]
            run.charge, run.state = Charge.from_json(body["charge"]), "closed"
        elif entry.kind == "lost":
            version.lost.append(Charge.from_json(body["charge"]))
            version.lost_runs += int(body["runs"])
            for run in body["names"]:
                version.runs[run].state = "lost"
        elif entry.kind == "given up":
            version.given_up = True
        elif entry.kind != "head":
            raise ValueError("no such kind of entry")
        if body.get("head") is not None:
            version.head = Link(int(body["head"][0]), bytes.fromhex(body["head"][1]))
            if entry.kind == "lost":
                version.reconciled.add(version.head)


def folded(name: str) -> str:
    """What names have in common that some file system takes for one."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def head_of(link: Link) -> list[Any]:
    """A place in a ledger's chain as JSON has it."""
    return [link.sequence, link.mac.hex()]


def total(charges: list[Charge]) -> Charge:
    """Their sum, correctly rounded, without divergences."""
    return Totals.of(charges).charge


def said_time(moment: datetime) -> str:
    return moment.isoformat(sep=" ", timespec="seconds")
